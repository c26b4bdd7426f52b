"""Reading a trial's log as text. The UTF-8 length of the text equals the number of bytes read."""

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
# An allowance for the supervisor's notices and the output's end, which exceed the log's limit.
LOG_NOTICES_BYTES_MAX = 1 << 20
# The limit on the log that is still sent after a kill, because another trial waits for the slots.
KILLED_LOG_BYTES_MAX = 16 << 20
# A log with this number of zero bytes in sequence ends there. A trial can create a hole of any size
# at no cost.
NULS_MAX = 64 * 1024
MARK_MS = 250
MARKS_MAX = 4096
# The limit on the marks of a piece of log, which matters after a long outage.
MARKS_SENT_MAX = 500


def _decode_as_question_marks(error: UnicodeError) -> tuple[str, int]:
    """Decode each invalid byte as `?`, an error handler that preserves the encoded length.

    The cluster adds encoded lengths to compute the next offset. Return the replacement and the
    position after the invalid bytes. Raise an error that is no UnicodeDecodeError.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error("detcloud.question", _decode_as_question_marks)


class LogMarks:
    """The times at which bytes of a log were first seen.

    A mark is an offset and the time, in epoch milliseconds, when the byte at the offset was first
    seen. At most one mark is stored for each 250 ms, and at most MARKS_MAX in total.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._size = 0

    def record_size(self, size: int, time_ms: int | None = None) -> None:
        """Record that the log has `size` bytes at `time_ms` (epoch milliseconds, by default now).

        Do nothing unless the size has grown. If the last mark is younger than MARK_MS, store the
        size without a mark. Above MARKS_MAX marks, delete marks evenly. Marks exist only in memory.
        """
        if size <= self._size:
            return
        now_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        if not self._marks or now_ms - self._marks[-1][1] >= MARK_MS:
            self._marks.append((self._size, now_ms))
        self._size = size
        if len(self._marks) > MARKS_MAX:
            self._marks = _thin_out(self._marks, MARKS_MAX // 2)

    def marks_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the marks (offset, time in ms) of the bytes from `start` to before `end`.

        The first mark is the last mark at or before `start`, if any. Of more than MARKS_SENT_MAX
        marks, return every n-th mark. Return an empty list without marks.
        """
        first = max(0, bisect_right(self._marks, start, key=_offset) - 1)
        last = bisect_right(self._marks, end - 1, key=_offset)
        return _thin_out(self._marks[first:last], MARKS_SENT_MAX)

    def discard_before(self, offset: int) -> None:
        """Delete the marks of bytes before `offset`, except the last mark at or before `offset`."""
        first = bisect_right(self._marks, offset, key=_offset) - 1
        if first > 0:
            del self._marks[:first]


def read_log(log: Path, offset: int, bytes_max: int, *, ended: bool) -> str:
    """Read at most `bytes_max` bytes of the log from byte `offset` on, as text.

    Invalid bytes become `?`. An incomplete character at the end is left out, unless the log has
    `ended` and the file ends there. Return "" after the end, or if the log is no regular file.
    """
    content, size = read_bytes(log, offset, bytes_max)
    last = ended and offset + len(content) >= size
    return decode_log(content if last else content[: len(content) - _incomplete_bytes(content)])


def is_hole(log: Path, offset: int) -> bool:
    """Whether NULS_MAX bytes from `offset` on exist and are all zero."""
    # A single byte is enough to rule out a hole in ordinary text.
    if read_bytes(log, offset, 1)[0] != b"\0":
        return False
    return read_bytes(log, offset, NULS_MAX)[0] == bytes(NULS_MAX)


def read_bytes(log: Path, offset: int, bytes_max: int) -> tuple[bytes, int]:
    """Return at most `bytes_max` bytes from `offset` on, and the size of the log.

    Return (b"", 0) if the log is missing or no regular file.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(log, flags)
    except OSError:
        return b"", 0
    try:
        # A trial may have replaced the log by a pipe or a folder.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b"", 0
        return os.pread(descriptor, bytes_max, offset), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def whole_lines(text: str) -> str:
    """Return the text up to the last newline or carriage return. Return "" without either."""
    return text[: max(text.rfind("\n"), text.rfind("\r")) + 1]


def decode_log(content: bytes) -> str:
    """Decode bytes into text of the same UTF-8 length. Each invalid byte becomes `?`."""
    return content.decode("utf-8", errors="detcloud.question")


def log_size(log: Path) -> int:
    """Return the number of bytes in the log. Return 0 if the log is missing or no regular file."""
    try:
        status = log.lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:
        return 0


def log_tail(log: Path, lines: int) -> str:
    """Return the last lines of the log's last TAIL_BYTES bytes, joined by newlines.

    Return "" if the log is empty or missing. The first line may be cut.
    """
    text = read_log(log, max(0, log_size(log) - TAIL_BYTES), TAIL_BYTES, ended=True)
    return "\n".join(text.splitlines()[-lines:])


def _incomplete_bytes(content: bytes) -> int:
    """Return the number of bytes at the end that form an incomplete UTF-8 character, 0 to 3."""
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
