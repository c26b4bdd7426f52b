"""A trial's log as lines, each with its time, its rank and its level.

A line is found in one scan over the chunks, of which those of another time are passed over by their
index rows. What is long is cut into pieces, which count as lines; a line whose end is still to come
waits for it.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from control_plane.agents.logs import RANK, IndexedChunk, TrialLogs

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
PIECE_BYTES = 16 * 1024
# What one request looks at; a page may be short, or empty, and yet have a next one.
SCANNED_BYTES_MAX = 512 * 1024
SCANNED_CHUNKS_MAX = 2_000

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
# [time] [name] LEVEL, with what usually stands between them.
_LEVEL = re.compile(
    rf"(?:[\[(]?{_TIME}[\])]?[\s,|:-]*)?"
    r"(?:\[?[\w.]+\]?(?: - | \| |\] )){0,2}"
    r"[\[(<|]?\s*(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
    r"\s*(?:[\])>|:]|[\s-]|$)"
)
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_LOWER = re.compile(r"(trace|debug|info|warning|error|critical|fatal): ")
_MEANING = {
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or a piece of one. `offset`: of its first byte in the trial's log; `time_ms`: when
    that was seen, None if nobody noted it.
    """

    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines to find; None: whatever they have. `level` is the least one."""

    since_ms: int | None = None
    until_ms: int | None = None
    rank: int | None = None
    level: str | None = None
    search: str = ""

    def __contains__(self, line: LogLine) -> bool:
        return (
            self.time_is_wanted(line.time_ms, line.time_ms)
            and self.rank in (None, line.rank)
            and (self.level is None or _weight(line.level) >= _weight(self.level))
            and (not self.search or self.search.casefold() in line.text.casefold())
        )

    def time_is_wanted(self, first_ms: int | None, last_ms: int | None) -> bool:
        """Whether something between these times may be wanted; None is no time."""
        if first_ms is None or last_ms is None:
            return self.since_ms is None and self.until_ms is None
        early = self.since_ms is not None and last_ms < self.since_ms
        return not early and (self.until_ms is None or first_ms <= self.until_ms)


class Place(NamedTuple):
    """Where to read on: a byte of the trial's log, and whether it may lie inside a line whose begin
    was passed over.
    """

    offset: int = 0
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class LinesFound:
    """`next`: where to go on from; `is_end`: nothing lies behind it as yet."""

    lines: list[LogLine]
    next: Place
    is_end: bool


@dataclass(slots=True)
class _Scan:
    """What is left to find, and the bytes from `start` on that are no whole line yet."""

    wanted: Wanted
    limit: int
    start: int
    is_inside: bool
    bytes_left: int = SCANNED_BYTES_MAX
    chunks_left: int = SCANNED_CHUNKS_MAX
    pending: bytes = b""
    marks: list[tuple[int, int]] = field(default_factory=list)
    found: list[LogLine] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return Place(self.start, self.is_inside)

    @property
    def is_over(self) -> bool:
        spent = self.bytes_left <= 0 or self.chunks_left <= 0
        return spent or len(self.found) >= self.limit

    def take(self, *, ends: bool) -> None:
        """Cuts lines off the pending bytes; with `ends`, what is left is the last one."""
        place = 0
        for length, taken in _cuts(self.pending, ends):
            if len(self.found) >= self.limit:
                break
            line = self._line(place, length)
            place += taken
            if line in self.wanted:
                self.found.append(line)
        self.start += place
        self.pending = self.pending[place:]

    def pass_over(self, end: int) -> None:
        """Leaves out everything up to `end`."""
        self.pending, self.start, self.is_inside = b"", end, True

    def _line(self, place: int, length: int) -> LogLine:
        offset = self.start + place
        at = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        time_ms = self.marks[at - 1][1] if at else None
        return parsed(self.pending[place : place + length], offset, time_ms)


def find_lines(
    logs: TrialLogs,
    trial_id: int,
    epochs: int,
    after: Place,
    *,
    ended: bool,
    wanted: Wanted,
    limit: int,
) -> LinesFound:
    """At most `limit` lines from `after` on; `epochs`: allocations of the trial.

    A last line without its end is found once the trial has `ended` or gone on elsewhere.
    """
    scan = _Scan(wanted, limit, *after)
    base = 0
    for epoch, size in enumerate(logs.sizes(trial_id, epochs), 1):
        behind = base + size
        if scan.start == base:
            # No line goes on from one allocation to the next.
            scan.is_inside = False
        if scan.start < behind:
            _scan_allocation(logs, trial_id, epoch, base, behind, scan)
            if not scan.is_over and (ended or epoch < epochs):
                scan.take(ends=True)
            if scan.start < behind and (scan.is_over or epoch < epochs):
                return LinesFound(scan.found, scan.place, False)
        base = behind
    return LinesFound(scan.found, scan.place, True)


def parsed(raw: bytes, offset: int, time_ms: int | None) -> LogLine:
    """A line without its end, as what it says of itself."""
    rank = RANK.match(raw)
    text = raw[rank.end() if rank else 0 :].decode("utf-8", "replace")
    return LogLine(offset, time_ms, int(rank[1]) if rank else 0, level_of(text), text)


def level_of(text: str) -> str | None:
    """The level a line names where loggers put it, None for other text."""
    # Colours and blanks in any number would have the pattern try all ways to divide them.
    plain = " ".join(_COLOUR.sub("", text[:400]).split())
    found = _LEVEL.match(plain) or _GLOG.match(text) or _LOWER.match(text)
    return _MEANING.get(found[1], found[1].upper()) if found else None


def _scan_allocation(
    logs: TrialLogs, trial_id: int, epoch: int, base: int, behind: int, scan: _Scan
) -> None:
    """Scans the log of one allocation, which lies at `base` to `behind` of the trial's."""
    for chunk in logs.chunks(trial_id, epoch, scan.start - base, behind - base):
        if scan.is_over:
            return
        scan.chunks_left -= 1
        end = base + chunk.end
        first = scan.start + len(scan.pending)
        if end <= first:
            continue
        is_wanted = _may_hold_wanted(chunk, scan.wanted)
        if not is_wanted and not scan.pending:
            scan.pass_over(end)
            continue
        scan.bytes_left -= end - first
        scan.marks += ((base + offset, time_ms) for offset, time_ms in chunk.marks)
        content = logs.content(trial_id, chunk, first - base, chunk.end)
        if scan.is_inside:
            content = _aligned(logs, trial_id, epoch, content, first - base, scan)
        scan.pending += content
        scan.take(ends=False)
        if not is_wanted and not scan.is_over:
            # Only the end of a line that had begun before it was of interest.
            scan.pass_over(end)


def _aligned(
    logs: TrialLogs, trial_id: int, epoch: int, content: bytes, first: int, scan: _Scan
) -> bytes:
    """The content from where a line begins: the one under way began in what was passed over."""
    [before] = logs.chunks(trial_id, epoch, first - 1, first)
    if logs.content(trial_id, before, first - 1, first) == b"\n":
        scan.is_inside = False
        return content
    newline = content.find(b"\n") + 1
    scan.start += newline or len(content)
    scan.is_inside = newline == 0
    return content[newline:] if newline else b""


def _may_hold_wanted(chunk: IndexedChunk, wanted: Wanted) -> bool:
    times = [time_ms for _, time_ms in chunk.marks]
    return wanted.time_is_wanted(min(times, default=None), max(times, default=None))


def _cuts(content: bytes, ends: bool) -> Iterator[tuple[int, int]]:
    """The lines in the bytes: the length of each, and how much it takes with its end."""
    place = 0
    while place < len(content):
        newline = content.find(b"\n", place, place + PIECE_BYTES + 1)
        if newline >= 0:
            length, taken = newline - place, newline - place + 1
            length -= content[place:newline].endswith(b"\r")
        elif len(content) - place > PIECE_BYTES:
            length = taken = _whole(content[place : place + PIECE_BYTES])
        elif ends:
            length = taken = len(content) - place
        else:
            return
        yield length, taken
        place += taken


def _whole(piece: bytes) -> int:
    """Bytes of the piece without a character that its end cuts."""
    for back in range(1, 4):
        byte = piece[-back]
        if byte & 0xC0 != 0x80:
            width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(piece) - back if width > back else len(piece)
    return len(piece)


def _weight(level: str | None) -> int:
    return LEVELS.index(level) if level in LEVELS else -1
