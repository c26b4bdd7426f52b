"""Packs one sync call: what goes up now, within the caps on bytes and allocations.

Lines are passed on as the bytes that were read, so that numbers arrive as they were written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from detcloud.agent.reports import Line

CALL_BYTES_MAX = 1 << 20
ALLOCATIONS_MAX = 30
# The envelope and the list of known allocations.
ENVELOPE_BYTES = 16 * 1024
LOG_CHUNK_BYTES = 128 * 1024
# A piece of a log without its text.
LOG_ENVELOPE_BYTES = 1024
READ_BYTES = 128 * 1024


class Source(Protocol):
    """One allocation as a parcel sees it: what lies after the acknowledged offsets."""

    @property
    def allocation(self) -> str:
        """The allocation's id."""

    @property
    def pressing(self) -> bool:
        """Whether an exit or a checkpoint waits: such allocations are packed first."""

    def writers(self) -> Sequence[str]:
        """Writers in the order to pack them, `agent` first."""

    def lines(self, writer: str, after: int | None, bytes_max: int) -> list[Line]:
        """Lines after the byte offset, after the acknowledged one with None."""

    def log(self, bytes_max: int) -> tuple[int, str, bool]:
        """The first unacknowledged byte's offset, the text from there, and whether more follows."""

    def log_marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Offsets of the log between these, and the epoch ms at which they were first seen."""


@dataclass
class Parcel:
    """Encoded reports and logs, and whether anything had to stay behind.

    `sent` maps (allocation, writer) to the last line's offset, for logs (allocation, "log") to the
    offset after the text.
    """

    bytes_max: int = CALL_BYTES_MAX - ENVELOPE_BYTES
    entries_max: int | None = None
    reports: list[bytes] = field(default_factory=list)
    logs: list[bytes] = field(default_factory=list)
    sent: dict[tuple[str, str], int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    more: bool = False
    size: int = 0

    @property
    def empty(self) -> bool:
        """Whether the call would carry nothing."""
        return not self.reports and not self.logs

    @property
    def entries(self) -> int:
        """Report lines and pieces of logs in the parcel."""
        return len(self.reports) + len(self.logs)

    def add(self, source: Source) -> None:
        """Pack one allocation: its reports, its log, and `exited` once both are through."""
        complete = True
        exited: list[Line] = []
        for writer in source.writers():
            lines = self._unsent(source, writer)
            if writer == "agent":
                exited = self._add_own(source.allocation, lines)
            else:
                complete = all(self._add_line(source.allocation, writer, line) for line in lines)
                if not complete:
                    break
        complete = complete and self._add_log(source)
        if exited and complete:
            complete = all(self._add_line(source.allocation, "agent", line) for line in exited)
        self.more = self.more or not complete

    def body(self, envelope: dict[str, Any], known: Iterable[str]) -> bytes:
        """The request's JSON; `envelope` holds its other fields."""
        fields = {**envelope, "known": sorted(known), "more": self.more}
        head = json.dumps(fields)[:-1].encode()
        reports, logs = b",".join(self.reports), b",".join(self.logs)
        return b'%s, "reports": [%s], "logs": [%s]}' % (head, reports, logs)

    def _unsent(self, source: Source, writer: str) -> Iterator[Line]:
        after: int | None = None
        while lines := source.lines(writer, after, READ_BYTES):
            yield from lines
            after = lines[-1].offset

    def _add_own(self, allocation: str, lines: Iterable[Line]) -> list[Line]:
        """Pack the agent's records up to `exited`; that one and what follows is handed back."""
        held: list[Line] = []
        for line in lines:
            if held or line.kind == "exited" or not self._add_line(allocation, "agent", line):
                held.append(line)
        return held

    def _add_line(self, allocation: str, writer: str, line: Line) -> bool:
        entry = b'{"allocation": %s, "writer": %s, "offset": %d, "line": %s}' % (
            json.dumps(allocation).encode(),
            json.dumps(writer).encode(),
            line.offset,
            line.raw,
        )
        if not self._fits(entry):
            return False
        self.reports.append(entry)
        self.sent[allocation, writer] = line.offset
        self.lines[allocation] = self.lines.get(allocation, 0) + 1
        return True

    def _add_log(self, source: Source) -> bool:
        room = min(LOG_CHUNK_BYTES, self.bytes_max - self.size - LOG_ENVELOPE_BYTES)
        while room > 0:
            offset, text, following = source.log(room)
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
            # Escapes may take six bytes for one: try less of it.
            room //= 2
        return False

    def _fits(self, entry: bytes) -> bool:
        if self.size + len(entry) + 1 > self.bytes_max:
            return False
        if self.entries_max is not None and self.entries >= self.entries_max:
            return False
        self.size += len(entry) + 1
        return True


class Turns:
    """Packs those first that were packed longest ago: talkative ones keep nobody waiting."""

    def __init__(self) -> None:
        self._calls = 0
        self._packed: dict[str, int] = {}

    def pack(self, sources: Sequence[Source], entries_max: int | None = None) -> Parcel:
        """The next parcel."""
        before = {source.allocation: self._packed.get(source.allocation, 0) for source in sources}
        parcel = pack(sorted(sources, key=lambda x: before[x.allocation]), entries_max)
        self._calls += 1
        self._packed = before | {allocation: self._calls for allocation, _ in parcel.sent}
        return parcel


def pack(sources: Sequence[Source], entries_max: int | None = None) -> Parcel:
    """A parcel of at most 30 allocations, those with exits and checkpoints first."""
    parcel = Parcel(entries_max=entries_max)
    served = 0
    for source in sorted(sources, key=lambda source: not source.pressing):
        if served == ALLOCATIONS_MAX:
            parcel.more = True
            break
        before = parcel.size
        parcel.add(source)
        served += parcel.size > before
    return parcel
