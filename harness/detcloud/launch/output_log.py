"""The log file of a trial's output, with a size limit and without errors on a full disk.

The supervisor may import this module by its folder, so this module imports nothing of the package.
"""

from __future__ import annotations

import os

TAIL_BYTES = 64 * 1024


class OutputLog:
    """The trial's output on disk: the first `bytes_max` bytes and the last TAIL_BYTES.

    A full disk raises no error. The lost bytes are counted, and a later line reports the number.
    """

    def __init__(self, path: str, bytes_max: int) -> None:
        """Open the file at `path` for appending, and create a missing file.

        Earlier content counts towards `bytes_max`. Raises OSError if the file cannot be opened.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)
        self._bytes_max = bytes_max
        self._room = bytes_max - os.fstat(self.descriptor).st_size
        self._tail = b""
        self._left_out = 0
        self._lost = 0
        self._problem = ""
        self._at_line_start = True

    def write(self, content: bytes) -> None:
        """Append `content` up to the limit. Keep the last bytes beyond the limit for `close`.

        The first call beyond the limit appends a notice. A failed write raises nothing; the lost
        bytes are counted, and the next write that succeeds first appends their number.
        """
        head = content[: max(0, self._room)]
        if head:
            self._room -= len(head)
            self._append(head)
        beyond = content[len(head) :]
        if beyond:
            if not self._left_out:
                limit = f"{self._bytes_max / 2**20:.0f} MiB"
                self._append_notice(
                    f"the log has reached its limit of {limit}: only its end will follow"
                )
            self._left_out += len(beyond)
            self._tail = (self._tail + beyond)[-TAIL_BYTES:]

    def close(self) -> None:
        """Append a notice of omitted bytes and the kept last bytes. Leave the file open.

        May be repeated: a repeated call only reports bytes that a full disk has refused.
        """
        left_out, self._left_out = self._left_out - len(self._tail), 0
        if left_out > 0:
            self._append_notice(f"{left_out} bytes of the log were left out here")
        tail, self._tail = self._tail, b""
        self._append(tail)

    def _append_notice(self, notice: str) -> None:
        """Append `notice` as a separate line."""
        start = "" if self._at_line_start else "\n"
        self._append(f"{start}[detcloud] {notice}\n".encode())

    def _append(self, content: bytes) -> None:
        """Append `content`, after a notice of bytes that earlier writes lost.

        If the notice or `content` cannot be written, count `content` as lost.
        """
        if self._lost:
            start = b"" if self._at_line_start else b"\n"
            notice = f"[detcloud] {self._lost} bytes of the log were lost: {self._problem}\n"
            if not self._try_to_write(start + notice.encode()):
                self._lost += len(content)
                return
            self._lost = 0
        if content and not self._try_to_write(content):
            self._lost += len(content)

    def _try_to_write(self, content: bytes) -> bool:
        """Write all of `content`. Return False after an OSError, and keep its message.

        A part of `content` may be on disk after a failure.
        """
        try:
            written = os.write(self.descriptor, content)
            while written < len(content):
                written += os.write(self.descriptor, content[written:])
        except OSError as error:
            self._problem = error.strerror or str(error)
            return False
        self._at_line_start = content.endswith(b"\n")
        return True
