"""Reads a trial's log as text whose UTF-8 length is the number of bytes it stands for."""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_BYTES = 16 * 1024


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    """One `?` per undecodable byte: the cluster adds encoded lengths to get the next offset."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error("detcloud.question", _question_marks)


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
