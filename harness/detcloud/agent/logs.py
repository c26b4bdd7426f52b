"""Reads a trial's log as text whose UTF-8 length is the number of bytes it stands for."""

from __future__ import annotations

import codecs
import os
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_BYTES = 16 * 1024
MARK_MS = 250
MARKS_MAX = 4096
# What one piece of a log carries, so that a long outage makes no long list.
MARKS_SENT_MAX = 500


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    """One `?` per undecodable byte: the cluster adds encoded lengths to get the next offset."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error("detcloud.question", _question_marks)


class LogMarks:
    """When which bytes of a log were first seen: at most one mark each 250 ms, fewer where nobody
    took them for a long time.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._size = 0

    def seen(self, size: int, time_ms: int | None = None) -> None:
        """The log has `size` bytes now, or at that epoch time."""
        if size <= self._size:
            return
        now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        if not self._marks or now_ms - self._marks[-1][1] >= MARK_MS:
            self._marks.append((self._size, now_ms))
        self._size = size
        if len(self._marks) > MARKS_MAX:
            self._marks = _thinned(self._marks, MARKS_MAX // 2)

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The marks of bytes `start` to `end`, beginning with the one that `start` falls under."""
        first = max(0, bisect_right(self._marks, start, key=_offset) - 1)
        last = bisect_right(self._marks, end - 1, key=_offset)
        return _thinned(self._marks[first:last], MARKS_SENT_MAX)

    def taken(self, offset: int) -> None:
        """Nothing before `offset` will be asked for again."""
        first = bisect_right(self._marks, offset, key=_offset) - 1
        if first > 0:
            del self._marks[:first]


def read_log(log: Path, offset: int, bytes_max: int, *, ended: bool) -> str:
    """Text from byte `offset` on; a character cut by the end is left for later unless `ended`."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        content = os.pread(descriptor, bytes_max, offset)
        last = ended and offset + len(content) >= os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    return decoded(content if last else content[: len(content) - _cut(content)])


def whole_lines(text: str) -> str:
    """The text up to the end of its last line, or of its last return to a line's beginning."""
    return text[: max(text.rfind("\n"), text.rfind("\r")) + 1]


def decoded(content: bytes) -> str:
    """The bytes as text of the same encoded length."""
    return content.decode("utf-8", errors="detcloud.question")


def log_size(log: Path) -> int:
    """Bytes in the log, 0 without one."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def log_tail(log: Path, lines: int) -> str:
    """The last lines, for the message of a failure."""
    text = read_log(log, max(0, log_size(log) - TAIL_BYTES), TAIL_BYTES, ended=True)
    return "\n".join(text.splitlines()[-lines:])


def _cut(content: bytes) -> int:
    """How many bytes at the end begin a character that is not complete, 0 to 3."""
    for back in range(1, min(4, len(content) + 1)):
        byte = content[-back]
        if byte >= 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if width > back else 0
        if byte < 0x80:
            return 0
    return 0


def _offset(mark: tuple[int, int]) -> int:
    return mark[0]


def _thinned(marks: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    step = -(-len(marks) // count)
    return marks[::step] if step > 1 else marks
