"""The payload of one sync call: reports and logs, within the caps on bytes and allocations.

Lines are passed on as the bytes that were read, so that numbers arrive as they were written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from detcloud.agent.allocation.trial_reports import ReportLine

CALL_BYTES_MAX = 1 << 20
ALLOCATIONS_MAX = 30
# Lines and pieces of logs of a call, so that no call has the work of minutes.
ENTRIES_MAX = 1_000
# Room for the envelope and the list of known allocations.
ENVELOPE_BYTES = 16 * 1024
# What may be read in a call to find the ends of too long lines.
SKIPPED_BYTES_MAX = 64 << 20
LOG_CHUNK_BYTES = 128 * 1024
# A piece of a log without its text.
LOG_ENVELOPE_BYTES = 1024
READ_BYTES = 128 * 1024


class PayloadSource(Protocol):
    """One allocation's reports and log after the acknowledged offsets."""

    @property
    def allocation(self) -> str:
        """The allocation's id."""

    @property
    def has_priority(self) -> bool:
        """Whether an exit or a checkpoint waits: such allocations are packed first."""

    def writers(self) -> Sequence[str]:
        """The writers in the order in which to pack them, `agent` first."""

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[ReportLine]:
        """Report lines after the byte offset, after the acknowledged one with None."""

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        """The first unacknowledged byte's offset, the text from there, and whether more follows."""

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """The marks of bytes `start` to `end` of the log: (offset, epoch ms when first seen)."""


@dataclass
class SyncPayload:
    """Encoded reports and logs; `more` says that something had to stay behind.

    `sent` maps (allocation, writer) to the last line's offset, for logs (allocation, "log") to the
    offset after the text.
    """

    bytes_max: int = CALL_BYTES_MAX - ENVELOPE_BYTES
    entries_max: int = ENTRIES_MAX
    reports: list[bytes] = field(default_factory=list)
    logs: list[bytes] = field(default_factory=list)
    sent: dict[tuple[str, str], int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    more: bool = False
    size: int = 0
    skipped_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the call would carry nothing."""
        return not self.reports and not self.logs

    @property
    def entry_count(self) -> int:
        """The number of report lines and pieces of logs."""
        return len(self.reports) + len(self.logs)

    def add_allocation(self, source: PayloadSource) -> None:
        """Pack one allocation: its reports, its log, and `exited` once both are complete."""
        complete = True
        exited: list[ReportLine] = []
        for writer in source.writers():
            lines = self._unsent_lines(source, writer)
            if writer == "agent":
                exited = self._add_agent_records(source.allocation, lines)
            else:
                complete = all(self._add_line(source.allocation, writer, line) for line in lines)
                if not complete:
                    break
        complete = complete and self._add_log(source)
        if exited and complete:
            complete = all(self._add_line(source.allocation, "agent", line) for line in exited)
        self.more = self.more or not complete

    def encode_body(self, envelope: dict[str, Any], known: Iterable[str]) -> bytes:
        """The request's body as JSON; `envelope` holds its other fields."""
        fields = {**envelope, "known": sorted(known), "more": self.more}
        head = json.dumps(fields)[:-1].encode()
        reports, logs = b",".join(self.reports), b",".join(self.logs)
        return b'%s, "reports": [%s], "logs": [%s]}' % (head, reports, logs)

    def _unsent_lines(self, source: PayloadSource, writer: str) -> Iterator[ReportLine]:
        after: int | None = None
        while lines := source.lines(writer, after, READ_BYTES):
            yield from lines
            after = lines[-1].offset

    def _add_agent_records(self, allocation: str, lines: Iterable[ReportLine]) -> list[ReportLine]:
        """Pack the agent's records up to `exited`; that one and those that follow are returned."""
        withheld: list[ReportLine] = []
        for line in lines:
            if withheld or line.kind == "exited" or not self._add_line(allocation, "agent", line):
                withheld.append(line)
        return withheld

    def _add_line(self, allocation: str, writer: str, line: ReportLine) -> bool:
        entry = b'{"allocation": %s, "writer": %s, "offset": %d, "line": %s}' % (
            json.dumps(allocation).encode(),
            json.dumps(writer).encode(),
            line.offset,
            line.raw,
        )
        if self.skipped_bytes >= SKIPPED_BYTES_MAX or not self._fits(entry):
            return False
        self.skipped_bytes += line.skipped_bytes
        self.reports.append(entry)
        self.sent[allocation, writer] = line.offset
        self.lines[allocation] = self.lines.get(allocation, 0) + 1
        return True

    def _add_log(self, source: PayloadSource) -> bool:
        room = min(LOG_CHUNK_BYTES, self.bytes_max - self.size - LOG_ENVELOPE_BYTES)
        while room > 0:
            offset, text, following = source.read_log(room)
            if not text:
                return not following
            end = offset + len(text.encode())
            entry = {
                "allocation": source.allocation,
                "offset": offset,
                "text": text,
                "marks": source.log_marks(offset, end),
            }
            encoded = json.dumps(entry, ensure_ascii=False).encode()
            if self._fits(encoded):
                self.logs.append(encoded)
                self.sent[source.allocation, "log"] = end
                return not following
            # Escapes may take six bytes for one: try less of the log.
            room //= 2
        return False

    def _fits(self, entry: bytes) -> bool:
        if self.size + len(entry) + 1 > self.bytes_max:
            return False
        if self.entry_count >= self.entries_max:
            return False
        self.size += len(entry) + 1
        return True


class FairPacker:
    """Packs those allocations first that were packed longest ago, so that none starves."""

    def __init__(self) -> None:
        self._calls = 0
        self._packed: dict[str, int] = {}

    def pack(self, sources: Sequence[PayloadSource], entries_max: int = ENTRIES_MAX) -> SyncPayload:
        """The next payload."""
        before = {source.allocation: self._packed.get(source.allocation, 0) for source in sources}
        payload = pack_payload(sorted(sources, key=lambda x: before[x.allocation]), entries_max)
        self._calls += 1
        self._packed = before | {allocation: self._calls for allocation, _ in payload.sent}
        return payload


def pack_payload(sources: Sequence[PayloadSource], entries_max: int = ENTRIES_MAX) -> SyncPayload:
    """A payload of at most 30 allocations, those with exits and checkpoints first."""
    payload = SyncPayload(entries_max=entries_max)
    packed = 0
    for source in sorted(sources, key=lambda source: not source.has_priority):
        if packed == ALLOCATIONS_MAX:
            payload.more = True
            break
        before = payload.size
        payload.add_allocation(source)
        packed += payload.size > before
    return payload
