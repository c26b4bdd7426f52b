"""A trial's log, read as text whose UTF-8 length is the number of bytes it stands for."""

from __future__ import annotations

import codecs
import os
import stat
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_BYTES = 16 * 1024
# More than a supervisor adds in notices to a log that has reached its limit.
LOG_NOTICES_BYTES_MAX = 1 << 20
# Of a killed trial's log this much is still sent: somebody waits for the slot.
KILLED_LOG_BYTES_MAX = 16 << 20
# Where a log has so many bytes of nothing it is no text that follows: a trial makes a hole of any
# size in no time.
NULS_MAX = 64 * 1024
MARK_MS = 250
MARKS_MAX = 4096
# The marks of one piece of a log, so that a long outage makes no long list.
MARKS_SENT_MAX = 500


def _decode_as_question_marks(error: UnicodeError) -> tuple[str, int]:
    """Decode each invalid byte as `?`: the cluster adds encoded lengths to get the next offset."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error("detcloud.question", _decode_as_question_marks)


class LogMarks:
    """The times at which bytes of a log were first seen, as marks (offset, epoch ms).

    There is at most one mark each 250 ms, and fewer where none was sent for a long time.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._size = 0

    def record_size(self, size: int, time_ms: int | None = None) -> None:
        """Note that the log has `size` bytes now, or at that epoch time."""
        if size <= self._size:
            return
        now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        if not self._marks or now_ms - self._marks[-1][1] >= MARK_MS:
            self._marks.append((self._size, now_ms))
        self._size = size
        if len(self._marks) > MARKS_MAX:
            self._marks = _thin_out(self._marks, MARKS_MAX // 2)

    def marks_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """The marks of bytes `start` to `end`, from the last one at or before `start` on."""
        first = max(0, bisect_right(self._marks, start, key=_offset) - 1)
        last = bisect_right(self._marks, end - 1, key=_offset)
        return _thin_out(self._marks[first:last], MARKS_SENT_MAX)

    def discard_before(self, offset: int) -> None:
        """Forget the marks of bytes before `offset`."""
        first = bisect_right(self._marks, offset, key=_offset) - 1
        if first > 0:
            del self._marks[:first]


def read_log(log: Path, offset: int, bytes_max: int, *, ended: bool) -> str:
    """The text from byte `offset` on.

    A character that the end of the file cuts is left out unless the log has `ended`.
    """
    content, size = _read_bytes(log, offset, bytes_max)
    last = ended and offset + len(content) >= size
    return decode_log(content if last else content[: len(content) - _incomplete_bytes(content)])


def is_hole(log: Path, offset: int) -> bool:
    """Whether NULS_MAX bytes from `offset` on are all zero."""
    # Text begins with no zero, so that it is not read for this.
    if _read_bytes(log, offset, 1)[0] != b"\0":
        return False
    return _read_bytes(log, offset, NULS_MAX)[0] == bytes(NULS_MAX)


def _read_bytes(log: Path, offset: int, bytes_max: int) -> tuple[bytes, int]:
    """The bytes from `offset` on, and the size of the log; nothing if it is not a regular file."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(log, flags)
    except OSError:
        return b"", 0
    try:
        # A trial may have put a pipe there, or a folder.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b"", 0
        return os.pread(descriptor, bytes_max, offset), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def whole_lines(text: str) -> str:
    """The text up to its last newline or carriage return."""
    return text[: max(text.rfind("\n"), text.rfind("\r")) + 1]


def decode_log(content: bytes) -> str:
    """The bytes as text of the same encoded length."""
    return content.decode("utf-8", errors="detcloud.question")


def log_size(log: Path) -> int:
    """Bytes in the log, 0 without one."""
    try:
        status = log.lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:
        return 0


def log_tail(log: Path, lines: int) -> str:
    """The last lines, for the message of a failure."""
    text = read_log(log, max(0, log_size(log) - TAIL_BYTES), TAIL_BYTES, ended=True)
    return "\n".join(text.splitlines()[-lines:])


def _incomplete_bytes(content: bytes) -> int:
    """The number of bytes at the end that begin an incomplete character, 0 to 3."""
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


def _thin_out(marks: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    step = -(-len(marks) // count)
    return marks[::step] if step > 1 else marks
