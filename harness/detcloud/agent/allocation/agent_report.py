"""The agent's own report file of one allocation, outside the trial's reach."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.trial_reports import ReportLine, parse_line
from detcloud.shared.files import parse_json_object

if TYPE_CHECKING:
    from pathlib import Path


class AgentReport:
    """The agent's report file of one allocation: appended to, one write per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0
        self._torn = False
        if path.exists():
            self._detect_torn_line()

    def append(self, kind: str, **fields: object) -> None:
        """Append one record with the present time."""
        record = {"kind": kind, "time_ms": time.time_ns() // 1_000_000, **fields}
        self._write(json.dumps(record).encode() + b"\n")

    def records(self) -> list[dict[str, Any]]:
        """All readable records, for an agent that takes over from another."""
        if not self._path.exists():
            return []
        records = (parse_json_object(line) for line in self._path.read_bytes().split(b"\n"))
        return [record for record in records if record is not None]

    def lines(self, offset: int) -> list[ReportLine]:
        """The records after the byte offset."""
        if offset >= self.size:
            return []
        content = self._path.read_bytes()[offset:]
        lines = []
        for raw in content.split(b"\n")[:-1]:
            offset += len(raw) + 1
            lines.append(parse_line(raw, offset))
        return lines

    def _detect_torn_line(self) -> None:
        """Note whether a crash left half a line, to which the next one must not be glued."""
        content = self._path.read_bytes()
        self.size = len(content)
        self._torn = bool(content) and not content.endswith(b"\n")

    def _write(self, line: bytes) -> None:
        """Append a line whole; OSError where there is no room, and then nothing of it stays."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            content = b"\n" + line if self._torn else line
            if os.write(descriptor, content) < len(content):
                os.ftruncate(descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            self._torn = False
            self.size = before + len(content)
        finally:
            os.close(descriptor)
