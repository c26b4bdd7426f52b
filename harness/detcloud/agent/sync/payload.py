"""The payload of a sync call: reports and logs, within limits on bytes, lines and allocations.

Lines are sent as the bytes that were read, so that numbers arrive exactly as written.
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
# The lines and pieces of logs in a call. More would take the cluster minutes.
ENTRIES_MAX = 1_000
# Room for the envelope and the list of known allocations.
ENVELOPE_BYTES = 16 * 1024
# The bytes that packing may read to find the ends of overlong lines.
SKIPPED_BYTES_MAX = 64 << 20
# The share of one allocation, so that every allocation gets a part of each call.
ALLOCATION_SKIPPED_BYTES_MAX = 16 << 20
LOG_CHUNK_BYTES = 128 * 1024
# The size of a piece of a log without the text.
LOG_ENVELOPE_BYTES = 1024
READ_BYTES = 128 * 1024


class PayloadSource(Protocol):
    """A source of an allocation's reports and log after the acknowledged offsets."""

    @property
    def allocation(self) -> str:
        """The allocation's id."""

    @property
    def has_priority(self) -> bool:
        """Whether an unsent exit or checkpoint waits, so that the allocation is packed first."""

    def writers(self) -> Sequence[str]:
        """Return the writers in the order of packing, `agent` first."""

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[ReportLine]:
        """Return a writer's lines after the byte offset `after`, about `bytes_max` bytes.

        None means the acknowledged offset. Return an empty list after the last line.
        """

    def read_log(self, bytes_max: int) -> tuple[int, str, bool]:
        """Read at most `bytes_max` bytes of unacknowledged log.

        Return the acknowledged offset, the text, and whether more text follows.
        """

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the marks of log bytes `start` to `end`: offset, epoch milliseconds first seen."""


@dataclass
class SyncPayload:
    """The encoded reports and logs of a call."""

    bytes_max: int = CALL_BYTES_MAX - ENVELOPE_BYTES
    """The limit on `size`."""
    entries_max: int = ENTRIES_MAX
    """The limit on report lines and pieces of logs."""
    reports: list[bytes] = field(default_factory=list)
    """The encoded report lines."""
    logs: list[bytes] = field(default_factory=list)
    """The encoded pieces of logs."""
    sent: dict[tuple[str, str], int] = field(default_factory=dict)
    """The offset after the last packed line or log text, by allocation and writer or `log`."""
    lines: dict[str, int] = field(default_factory=dict)
    """The number of packed report lines by allocation."""
    more: bool = False
    """Whether data did not fit into the payload."""
    size: int = 0
    """The bytes of `reports` and `logs`, with a separator for each."""
    skipped_bytes: int = 0
    """The bytes read to find the ends of overlong lines."""
    skipped_of: dict[str, int] = field(default_factory=dict)
    """The bytes read to find the ends of overlong lines, by allocation."""

    @property
    def is_empty(self) -> bool:
        """Whether the payload has neither report lines nor logs."""
        return not self.reports and not self.logs

    @property
    def entry_count(self) -> int:
        """The number of report lines and pieces of logs."""
        return len(self.reports) + len(self.logs)

    def add_allocation(self, source: PayloadSource) -> None:
        """Pack an allocation's unsent reports and log, as far as the limits allow.

        The `exited` record is packed only if all reports and the whole log are packed. Set `more`
        if data is left.
        """
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
        """Return the JSON body of the request. `envelope` has the fields of the session.

        `known` are the ids of all allocations on this node.
        """
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
        """Pack the agent's records before `exited`. Return `exited` and all later records.

        Also return the records from the first one that did not fit.
        """
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
        own_skipped = self.skipped_of.get(allocation, 0)
        has_read_enough = (
            self.skipped_bytes >= SKIPPED_BYTES_MAX or own_skipped >= ALLOCATION_SKIPPED_BYTES_MAX
        )
        if has_read_enough or not self._fits(entry):
            return False
        self.skipped_bytes += line.skipped_bytes
        self.skipped_of[allocation] = own_skipped + line.skipped_bytes
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
            # The JSON text may be six times as long because of escapes: try a smaller piece.
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
    """A packer that remembers past calls, and packs the least recently packed allocations first."""

    def __init__(self) -> None:
        self._calls = 0
        self._packed: dict[str, int] = {}

    def pack(self, sources: Sequence[PayloadSource], entries_max: int = ENTRIES_MAX) -> SyncPayload:
        """Pack the next payload from at most 30 allocations with unsent data.

        The least recently packed allocations come first within each priority. `entries_max` limits
        report lines and pieces of logs.
        """
        before = {source.allocation: self._packed.get(source.allocation, 0) for source in sources}
        payload = pack_payload(sorted(sources, key=lambda x: before[x.allocation]), entries_max)
        self._calls += 1
        self._packed = before | {allocation: self._calls for allocation, _ in payload.sent}
        return payload


def pack_payload(sources: Sequence[PayloadSource], entries_max: int = ENTRIES_MAX) -> SyncPayload:
    """Pack a payload from at most 30 allocations with unsent data.

    Allocations with priority come first, otherwise the order of `sources` stays. `entries_max`
    limits report lines and pieces of logs; with 0 the payload is empty.
    """
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
