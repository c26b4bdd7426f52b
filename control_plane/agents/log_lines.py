"""Search of a trial's log for lines, each of which has a time, a rank and a level.

Lines are found in one scan over the chunks. Chunks of another time are skipped by their index rows
alone. A long line is cut into pieces, which count as lines; a line whose end has not been written
yet is not found before.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from control_plane.agents.logs import RANK, IndexedChunk, TrialLogs

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# What a program prints without a level, as journald has it too: a user who asks for INFO wants to
# see prints and leave out only the DEBUG lines.
LEVEL_OF_PLAIN_LINES = "INFO"
PIECE_BYTES = 16 * 1024
# What one request scans at most; a page may be short, or empty, and yet have a next one.
SCANNED_BYTES_MAX = 512 * 1024
SCANNED_CHUNKS_MAX = 2_000

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
# [time] [name] LEVEL, with the usual separators between them.
_LEVEL = re.compile(
    rf"(?:[\[(]?{_TIME}[\])]?[\s,|:-]*)?"
    r"(?:\[?[\w.]+\]?(?: - | \| |\] )){0,2}"
    r"[\[(<|]?\s*(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
    r"\s*(?:[\])>|:]|[\s-]|$)"
)
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_LOWER = re.compile(r"(trace|debug|info|warning|error|critical|fatal): ")
_LEVEL_ALIASES = {
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, or a piece of a long one. `offset` is that of its first byte in the trial's log;
    `time_ms` is when that byte was first seen, None if unknown.
    """

    offset: int
    time_ms: int | None
    rank: int
    level: str | None
    text: str


@dataclass(frozen=True, slots=True)
class LineFilter:
    """The lines to find: a filter that is None accepts any value. `level` is the lowest one, and a
    line without a level counts as LEVEL_OF_PLAIN_LINES.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    rank: int | None = None
    level: str | None = None
    search: str = ""

    def __contains__(self, line: LogLine) -> bool:
        return (
            self.matches_time(line.time_ms, line.time_ms)
            and self.rank in (None, line.rank)
            and (self.level is None or _level_rank(line.level) >= _level_rank(self.level))
            and (not self.search or self.search.casefold() in line.text.casefold())
        )

    def line_marks(self, content: bytes) -> list["_Places"]:
        """Places in the bytes, of which every accepted line has one of each: to look for them takes
        a fraction of the time of parsing each line. There are none where the bytes do not tell.
        """
        if not content.isascii():
            return []
        marks = []
        if self.search and self.search.isascii():
            pattern = re.compile(re.escape(self.search.encode()), re.IGNORECASE)
            marks.append(_Places(pattern, content))
        # A colour may be within the name of a level, and a plain line has none.
        if not self._takes_plain_lines and b"\x1b" not in content:
            marks.append(_Places(_level_pattern(self.level), content))
        return marks

    @property
    def _takes_plain_lines(self) -> bool:
        return self.level is None or _level_rank(None) >= _level_rank(self.level)

    def matches_time(self, first_ms: int | None, last_ms: int | None) -> bool:
        """Whether a line between these times may be accepted; None for unknown times."""
        if first_ms is None or last_ms is None:
            return self.since_ms is None and self.until_ms is None
        early = self.since_ms is not None and last_ms < self.since_ms
        return not early and (self.until_ms is None or first_ms <= self.until_ms)


class _Places:
    """The places where a pattern is found in bytes, asked for in ascending ranges."""

    def __init__(self, pattern: re.Pattern[bytes], content: bytes) -> None:
        self._pattern = pattern
        self._content = content
        self._next = -1

    def has_one(self, first: int, end: int) -> bool:
        """Whether the pattern is found from `first` on before `end`."""
        if self._next < first:
            found = self._pattern.search(self._content, first)
            self._next = found.start() if found else len(self._content)
        return self._next < end


class LogPosition(NamedTuple):
    """A position to read on from: a byte of the trial's log, and whether it may be inside a line
    whose begin was skipped.
    """

    offset: int = 0
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class LogLinePage:
    """The lines found, the position to go on from, and whether that is the log's end so far."""

    lines: list[LogLine]
    next: LogPosition
    is_end: bool


@dataclass(slots=True)
class _Scan:
    """The progress of a scan: what it may still find and read, the lines found, and the `pending`
    bytes from `start` on that are no whole line yet.
    """

    line_filter: LineFilter
    limit: int
    start: int
    is_inside: bool
    bytes_left: int = SCANNED_BYTES_MAX
    chunks_left: int = SCANNED_CHUNKS_MAX
    pending: bytes = b""
    marks: list[tuple[int, int]] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.start, self.is_inside)

    @property
    def is_over(self) -> bool:
        spent = self.bytes_left <= 0 or self.chunks_left <= 0
        return spent or len(self.lines) >= self.limit

    def cut_lines(self, *, ends: bool) -> None:
        """Cut lines off the pending bytes; with `ends`, the remaining bytes are the last line."""
        place = 0
        marks = self.line_filter.line_marks(self.pending)
        for length, taken in _line_lengths(self.pending, ends):
            if len(self.lines) >= self.limit:
                break
            if all(mark.has_one(place, place + length) for mark in marks):
                line = self._parse_pending_line(place, length)
                if line in self.line_filter:
                    self.lines.append(line)
            place += taken
        self.start += place
        self.pending = self.pending[place:]

    def skip_to(self, end: int) -> None:
        """Skip everything up to `end`."""
        self.pending, self.start, self.is_inside = b"", end, True

    def _parse_pending_line(self, place: int, length: int) -> LogLine:
        offset = self.start + place
        at = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        time_ms = self.marks[at - 1][1] if at else None
        return parse_line(self.pending[place : place + length], offset, time_ms)


def find_lines(
    logs: TrialLogs,
    trial_id: int,
    epochs: int,
    after: LogPosition,
    *,
    ended: bool,
    line_filter: LineFilter,
    limit: int,
) -> LogLinePage:
    """Find at most `limit` lines from `after` on, in the logs of the trial's allocations 1 to
    `epochs`.

    A last line without its end is found once the trial has `ended` or has a later allocation.
    """
    scan = _Scan(line_filter, limit, *after)
    base = 0
    for epoch, size in enumerate(logs.read_allocation_sizes(trial_id, epochs), 1):
        log_end = base + size
        if scan.start == base:
            # No line continues from one allocation to the next.
            scan.is_inside = False
        if scan.start < log_end:
            _scan_allocation(logs, trial_id, epoch, base, log_end, scan)
            if not scan.is_over and (ended or epoch < epochs):
                scan.cut_lines(ends=True)
            if scan.start < log_end and (scan.is_over or epoch < epochs):
                return LogLinePage(scan.lines, scan.position, False)
        base = log_end
    return LogLinePage(scan.lines, scan.position, True)


def parse_line(raw: bytes, offset: int, time_ms: int | None) -> LogLine:
    """Parse a line, without its newline, into its rank, level and text."""
    rank = RANK.match(raw)
    text = raw[rank.end() if rank else 0 :].decode("utf-8", "replace")
    return LogLine(offset, time_ms, int(rank[1]) if rank else 0, parse_level(text), text)


def parse_level(text: str) -> str | None:
    """Parse the level of a line from where loggers put it; None if there is none."""
    # Any number of colours and blanks would have the pattern try all ways to divide them.
    plain = " ".join(_COLOUR.sub("", text[:400]).split())
    match = _LEVEL.match(plain) or _GLOG.match(text) or _LOWER.match(text)
    return _LEVEL_ALIASES.get(match[1], match[1].upper()) if match else None


def _scan_allocation(
    logs: TrialLogs, trial_id: int, epoch: int, base: int, log_end: int, scan: _Scan
) -> None:
    """Scan the log of one allocation, which is bytes `base` to `log_end` of the trial's log."""
    for chunk in logs.read_chunks(trial_id, epoch, scan.start - base, log_end - base):
        if scan.is_over:
            return
        scan.chunks_left -= 1
        end = base + chunk.end
        first = scan.start + len(scan.pending)
        if end <= first:
            continue
        may_match = _may_match(chunk, scan.line_filter)
        if not may_match and not scan.pending:
            scan.skip_to(end)
            continue
        scan.bytes_left -= end - first
        scan.marks += ((base + offset, time_ms) for offset, time_ms in chunk.marks)
        content = logs.read_content(trial_id, chunk, first - base, chunk.end)
        if scan.is_inside:
            content = _skip_partial_line(logs, trial_id, epoch, content, first - base, scan)
        scan.pending += content
        scan.cut_lines(ends=False)
        if not may_match and not scan.is_over:
            # Of this chunk, only the end of a line that began before it was needed.
            scan.skip_to(end)


def _skip_partial_line(
    logs: TrialLogs, trial_id: int, epoch: int, content: bytes, first: int, scan: _Scan
) -> bytes:
    """The content from the begin of its first line: a line that began in a skipped chunk is left
    out.
    """
    [before] = logs.read_chunks(trial_id, epoch, first - 1, first)
    if logs.read_content(trial_id, before, first - 1, first) == b"\n":
        scan.is_inside = False
        return content
    newline = content.find(b"\n") + 1
    scan.start += newline or len(content)
    scan.is_inside = newline == 0
    return content[newline:] if newline else b""


def _may_match(chunk: IndexedChunk, line_filter: LineFilter) -> bool:
    times = [time_ms for _, time_ms in chunk.marks]
    return line_filter.matches_time(min(times, default=None), max(times, default=None))


def _line_lengths(content: bytes, ends: bool) -> Iterator[tuple[int, int]]:
    """The lengths of the lines in the bytes, without and with their ends."""
    place = 0
    while place < len(content):
        newline = content.find(b"\n", place, place + PIECE_BYTES + 1)
        if newline >= 0:
            length, taken = newline - place, newline - place + 1
            length -= content[place:newline].endswith(b"\r")
        elif len(content) - place > PIECE_BYTES:
            length = taken = _whole_characters_length(content[place : place + PIECE_BYTES])
        elif ends:
            length = taken = len(content) - place
        else:
            return
        yield length, taken
        place += taken


def _whole_characters_length(piece: bytes) -> int:
    """The length of a piece without an incomplete character at its end."""
    for back in range(1, 4):
        byte = piece[-back]
        if byte & 0xC0 != 0x80:
            width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(piece) - back if width > back else len(piece)
    return len(piece)


@cache
def _level_pattern(level: str) -> re.Pattern[bytes]:
    """The pattern that is found in every line of the level or a higher one."""
    names = LEVELS[_level_rank(level) :]
    aliases = [alias for alias, name in _LEVEL_ALIASES.items() if name in names]
    words = [*names, *(alias for alias in aliases if len(alias) > 1)]
    letters = "".join(alias for alias in aliases if len(alias) == 1)
    glog = [rf"[{letters}]\d{{4}} "] if letters else []
    lower = [f"{word.lower()}: " for word in words]
    return re.compile("|".join([*words, *glog, *lower]).encode())


def _level_rank(level: str | None) -> int:
    return LEVELS.index(level or LEVEL_OF_PLAIN_LINES)
