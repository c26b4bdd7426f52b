"""The agent's own report file of an allocation."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.trial_reports import ReportLine, parse_line
from detcloud.shared.files import discard, parse_json_object, read_regular_file

if TYPE_CHECKING:
    from pathlib import Path


# More than an agent ever writes for an allocation.
REPORT_BYTES_MAX = 16 << 20
# Records that wait for the next call, however late.
PATIENT_KINDS = frozenset({"use"})


class AgentReport:
    """The agent's report file of an allocation, to which each record is appended as a line.

    The constructor reads an existing file. From then on the content in memory is authoritative. A
    trial that runs as the agent's user can change the file; the next append then rewrites a file
    of another size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_regular_file(path, REPORT_BYTES_MAX) or b""
        # A crash may have left half a line, so that the next record must start on a new line.
        self._torn = bool(self._content) and not self._content.endswith(b"\n")
        self._found = len(self._content)
        # The size after the last record that must be sent soon.
        self.urgent_size = len(self._content)

    @property
    def size(self) -> int:
        """The number of bytes of the report."""
        return len(self._content)

    def append(self, kind: str, **fields: object) -> None:
        """Append a record of this kind, with the current time and the fields.

        Raise OSError if the disk is full or the file cannot be written. Nothing is appended then.
        """
        record = {"kind": kind, "time_ms": time.time_ns() // 1_000_000, **fields}
        self._write(json.dumps(record).encode() + b"\n")
        if kind not in PATIENT_KINDS:
            self.urgent_size = self.size

    def remove_from(self, kind: str) -> None:
        """Remove the first record of a kind and all later records.

        Do nothing if no record is of the kind. The file changes with the next append. Used for
        records that another program has written.
        """
        end = 0
        for raw in self._content.splitlines(keepends=True):
            if (parse_json_object(raw) or {}).get("kind") == kind:
                self._content, self._torn, self._found = self._content[:end], False, end
                return
            end += len(raw)

    def make_room(self, acked: int) -> None:
        """Insert blanks for records that the cluster has acknowledged but this machine has lost.

        A power failure may lose records. Without the blanks, the cluster would take new records for
        known ones. `acked` is the cluster's offset. Only the first call has an effect, and only if
        the offset is beyond the end of the file that the constructor read.
        """
        missing, self._found = acked - self._found, sys.maxsize
        if missing > 0:
            lost = b" " * (missing - 1) + b"\n"
            self._content = (
                self._content[: acked - missing] + lost + self._content[acked - missing :]
            )

    def records(self) -> list[dict[str, Any]]:
        """Return all records in order. Skip lines that are no JSON objects."""
        records = (parse_json_object(line) for line in self._content.split(b"\n"))
        return [record for record in records if record is not None]

    def lines(self, offset: int) -> list[ReportLine]:
        """Return the complete lines after the byte offset. A malformed line becomes a warning."""
        lines = []
        for raw in self._content[offset:].split(b"\n")[:-1]:
            offset += len(raw) + 1
            lines.append(parse_line(raw, offset))
        return lines

    def _write(self, line: bytes) -> None:
        """Append a whole line. Raise OSError, and append nothing, if the disk is full.

        Rewrite the whole file if its size differs from the content in memory.
        """
        content = b"\n" + line if self._torn else line
        descriptor = self._open()
        try:
            before = os.fstat(descriptor).st_size
            if before != self.size:
                os.ftruncate(descriptor, 0)
                before, content = 0, self._content + content
            if os.write(descriptor, content) < len(content):
                os.ftruncate(descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)
        self._content += content if before else content[self.size :]
        self._torn = False

    def _open(self) -> int:
        """Open the file for appending, and return the descriptor.

        Create the folder and the file if they are missing. Delete a link, folder or special file in
        the file's place. Raise OSError if the file cannot be opened.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_file()):
            discard(self._path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags | os.O_NONBLOCK, 0o600)
