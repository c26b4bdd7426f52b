"""The agent's own report file of one allocation, outside the trial's reach."""

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


# More than an agent ever writes of one allocation.
REPORT_BYTES_MAX = 16 << 20


class AgentReport:
    """The agent's report file of one allocation: appended to, one write per line.

    It lies in a folder that a trial which runs as the agent's own user can reach. What is there
    that this agent has not written is replaced by what it has.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_regular_file(path, REPORT_BYTES_MAX) or b""
        # A crash may have left half a line, to which the next one must not be glued.
        self._torn = bool(self._content) and not self._content.endswith(b"\n")
        self._found = len(self._content)

    @property
    def size(self) -> int:
        """Bytes of the report."""
        return len(self._content)

    def append(self, kind: str, **fields: object) -> None:
        """Append one record with the present time."""
        record = {"kind": kind, "time_ms": time.time_ns() // 1_000_000, **fields}
        self._write(json.dumps(record).encode() + b"\n")

    def remove_from(self, kind: str) -> None:
        """Remove the first record of a kind, and all behind it: somebody else has written them."""
        end = 0
        for raw in self._content.splitlines(keepends=True):
            if (parse_json_object(raw) or {}).get("kind") == kind:
                self._content, self._torn, self._found = self._content[:end], False, end
                return
            end += len(raw)

    def make_room(self, acked: int) -> None:
        """Make room for what the cluster has of the report and this machine has lost, as when its
        power failed: records since then would seem to be known. Only the first call, with the first
        offset that the cluster tells, has an effect.
        """
        missing, self._found = acked - self._found, sys.maxsize
        if missing > 0:
            lost = b" " * (missing - 1) + b"\n"
            self._content = (
                self._content[: acked - missing] + lost + self._content[acked - missing :]
            )

    def records(self) -> list[dict[str, Any]]:
        """All readable records, for an agent that takes over from another."""
        records = (parse_json_object(line) for line in self._content.split(b"\n"))
        return [record for record in records if record is not None]

    def lines(self, offset: int) -> list[ReportLine]:
        """The records after the byte offset."""
        lines = []
        for raw in self._content[offset:].split(b"\n")[:-1]:
            offset += len(raw) + 1
            lines.append(parse_line(raw, offset))
        return lines

    def _write(self, line: bytes) -> None:
        """Append a whole line or, with OSError for a full disk, nothing."""
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
        """Open the file for appending, in a folder made again where it was removed, and without
        what else was put in its place.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.is_symlink() or (self._path.exists() and not self._path.is_file()):
            discard(self._path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags | os.O_NONBLOCK, 0o600)
