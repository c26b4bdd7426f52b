"""A scan over the chunks of a trial's log, which cuts lines and checks each line against a filter.

Index rows alone suffice to skip chunks outside the requested time. A long line is cut into pieces,
each of which counts as a line.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from control_plane.agents.log_levels import level_pattern, level_rank, parse_level
from control_plane.agents.logs import RANK, IndexedChunk, TrialLogs

PIECE_BYTES = 16 * 1024
"""The length of the pieces that a longer line is cut into."""
# Because of the limits, a page may be short or empty although later lines match.
SCANNED_BYTES_MAX = 512 * 1024
SCANNED_CHUNKS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a trial's log, or a piece of a long line."""

    offset: int
    """The offset of the first byte in the trial's log."""
    time_ms: int | None
    """The time at which the first byte was first seen (epoch ms), None if unknown."""
    rank: int
    """The rank of the process that wrote the line. 0 for a line without a rank."""
    level: str | None
    """One of `LEVELS`, None for a line without a level."""
    text: str
    """The text without the rank and the line break. Invalid UTF-8 is replaced."""
    unfinished: bool = False
    """Whether the text is the part of the last line before its last carriage return. The next line
    found begins with the rest.
    """


@dataclass(frozen=True, slots=True)
class LineFilter:
    """The conditions that a line must meet. A condition that is None accepts every line."""

    since_ms: int | None = None
    """The earliest time of a line (epoch ms)."""
    until_ms: int | None = None
    """The latest time of a line (epoch ms)."""
    ranks: frozenset[int] = frozenset()
    """The ranks of the processes that wrote the lines. Empty for all ranks."""
    level: str | None = None
    """The lowest level. A line without a level counts as `LEVEL_OF_PLAIN_LINES`."""
    search: str = ""
    """A text that the line contains, ignoring case."""

    def __contains__(self, line: LogLine) -> bool:
        """Return whether the line meets all conditions. Raises ValueError for an unknown
        `level`.
        """
        return (
            self.matches_time(line.time_ms, line.time_ms)
            and (not self.ranks or line.rank in self.ranks)
            and (self.level is None or level_rank(line.level) >= level_rank(self.level))
            and (not self.search or self.search.casefold() in line.text.casefold())
        )

    def required_matches(self, content: bytes) -> list["_PatternMatches"]:
        """Return patterns that must all match in every accepted line of `content`.

        A search for the patterns is much faster than parsing every line. Return [] if `content` is
        not ASCII, or if the filter has neither text nor level. A searched text that is not ASCII
        has no pattern. The level has no pattern if the filter accepts lines without a level, or if
        `content` has colour codes. A line with matches must still be checked.
        """
        if not content.isascii():
            return []
        matches = []
        if self.search and self.search.isascii():
            pattern = re.compile(re.escape(self.search.encode()), re.IGNORECASE)
            matches.append(_PatternMatches(pattern, content))
        # A colour code may divide the name of a level, and a plain line has no level.
        if not self._accepts_plain_lines and b"\x1b" not in content:
            matches.append(_PatternMatches(level_pattern(self.level), content))
        return matches

    @property
    def _accepts_plain_lines(self) -> bool:
        """Whether the filter accepts the level of lines without a level."""
        return self.level is None or level_rank(None) >= level_rank(self.level)

    def matches_time(self, first_ms: int | None, last_ms: int | None) -> bool:
        """Return whether a line seen between two times in epoch ms may meet the conditions on time.

        If a time is unknown (None), return True only for a filter without such conditions.
        """
        if first_ms is None or last_ms is None:
            return self.since_ms is None and self.until_ms is None
        early = self.since_ms is not None and last_ms < self.since_ms
        return not early and (self.until_ms is None or first_ms <= self.until_ms)


class _PatternMatches:
    """The matches of a pattern in bytes, for queries with ascending ranges. A query skips earlier
    bytes.
    """

    def __init__(self, pattern: re.Pattern[bytes], content: bytes) -> None:
        self._pattern = pattern
        self._content = content
        self._next = -1

    def find(self, first: int) -> int:
        """Return the place of the next match at byte `first` or later, or the end of the content.

        `first` must not be below that of the previous call.
        """
        if self._next < first:
            match = self._pattern.search(self._content, first)
            self._next = match.start() if match else len(self._content)
        return self._next


class LogPosition(NamedTuple):
    """A position from which a search continues."""

    offset: int = 0
    """The offset in the trial's log."""
    is_inside: bool = False
    """Whether the offset may be inside a line whose beginning was skipped."""


@dataclass(slots=True)
class Scan:
    """The progress of a search through a trial's log."""

    line_filter: LineFilter
    limit: int
    """The number of lines after which the scan ends."""
    start: int
    """The offset of the first pending byte in the trial's log."""
    is_inside: bool
    """Whether `start` may be inside a line whose beginning was skipped."""
    bytes_left: int = SCANNED_BYTES_MAX
    """The number of bytes that the scan may still read."""
    chunks_left: int = SCANNED_CHUNKS_MAX
    """The number of chunks that the scan may still visit."""
    pending: bytes = b""
    """The bytes from `start` on that were read and are not cut into lines yet."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Offsets, each with the time (epoch ms) at which the bytes from there on were first seen."""
    lines: list[LogLine] = field(default_factory=list)
    """The lines found so far."""

    @property
    def position(self) -> LogPosition:
        """The position from which the next search continues."""
        return LogPosition(self.start, self.is_inside)

    @property
    def is_over(self) -> bool:
        """Whether the scan has found enough lines or has read as much as allowed."""
        spent = self.bytes_left <= 0 or self.chunks_left <= 0
        return spent or len(self.lines) >= self.limit

    def cut_lines(self, *, ends: bool) -> None:
        """Cut lines off the pending bytes, and add the lines that meet the filter to `lines`.

        `start` moves behind the cut lines. Stop when `limit` lines are collected; the rest stays
        pending.

        Args:
            ends: whether the bytes after the last newline are a line as well. If not, they stay
                pending.
        """
        place = 0
        required = self.line_filter.required_matches(self.pending)
        while len(self.lines) < self.limit:
            # Lines before the next match cannot meet the filter.
            match = max((matches.find(place) for matches in required), default=place)
            place = self.pending.rfind(b"\n", place, match) + 1 or place
            found = _line_length(self.pending, place, ends)
            if found is None:
                break
            length, length_with_end = found
            if not required or match < place + length:
                line = self._parse_pending_line(place, length)
                if line in self.line_filter:
                    self.lines.append(line)
            place += length_with_end
        self.start += place
        self.pending = self.pending[place:]

    def cut_overwritten_text(self) -> None:
        """Cut the text before the last carriage return off the pending last line.

        Add the text to `lines` as an unfinished line if the text meets the filter. Do nothing
        without a carriage return, or inside a line whose beginning was skipped. A carriage return
        at the very end does not count, because it may be the first half of a line break.
        """
        length = self.pending.rfind(b"\r", 0, len(self.pending) - 1)
        if length <= 0 or self.is_inside:
            return
        line = replace(self._parse_pending_line(0, length), unfinished=True)
        if line in self.line_filter:
            self.lines.append(line)
        self.start += length
        self.pending = self.pending[length:]

    def skip_to(self, end: int) -> None:
        """Discard the pending bytes and continue at offset `end`, possibly inside a line."""
        self.pending, self.start, self.is_inside = b"", end, True

    def _parse_pending_line(self, place: int, length: int) -> LogLine:
        """Parse `length` pending bytes from index `place` on as a line. The bytes stay pending.

        The line gets the time of the last mark at or before its first byte, or None.
        """
        offset = self.start + place
        at = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        time_ms = self.marks[at - 1][1] if at else None
        return parse_line(self.pending[place : place + length], offset, time_ms)


def parse_line(raw: bytes, offset: int, time_ms: int | None) -> LogLine:
    """Parse the bytes of a line, without the newline, into rank, level and text.

    The prefix `[rank=N] ` is removed from the text. Without the prefix, the rank is 0. The level is
    None unless the text begins with the level of a logger. Invalid UTF-8 is replaced.

    Args:
        raw: the bytes.
        offset: the offset of the line in the trial's log, for the result.
        time_ms: the time of the line, for the result.
    """
    rank = RANK.match(raw)
    text = raw[rank.end() if rank else 0 :].decode("utf-8", "replace")
    return LogLine(offset, time_ms, int(rank[1]) if rank else 0, parse_level(text), text)


def scan_allocation(
    logs: TrialLogs,
    trial_id: int,
    epoch: int,
    base: int,
    log_end: int,
    scan: Scan,
    *,
    stop_ms: int | None = None,
) -> bool:
    """Scan the log of an allocation: the bytes `base` to `log_end`, exclusive, of the trial's log.

    Add the lines found to `scan`, and stop early when the scan is over. Chunks whose times cannot
    match are skipped unread. The end of a last line without a newline stays pending. Raises
    TableError and OSError.

    Args:
        epoch: the number of the allocation within the trial.
        stop_ms: a time (epoch ms). The scan stops before the first chunk that was seen later,
            unless the chunk may have the end of a pending line.

    Returns:
        Whether the scan stopped because of `stop_ms`.
    """
    for chunk in logs.read_chunks(trial_id, epoch, scan.start - base, log_end - base):
        if scan.is_over:
            return False
        is_later = stop_ms is not None and bool(chunk.marks) and chunk.marks[0][1] > stop_ms
        if is_later and not scan.pending:
            return True
        scan.chunks_left -= 1
        end = min(base + chunk.end, log_end)
        first = scan.start + len(scan.pending)
        if end <= first:
            continue
        may_match = _may_match(chunk, scan.line_filter)
        if not may_match and not scan.pending:
            scan.skip_to(end)
            continue
        scan.bytes_left -= end - first
        scan.marks += ((base + offset, time_ms) for offset, time_ms in chunk.marks)
        content = logs.read_content(trial_id, chunk, first - base, end - base)
        if scan.is_inside:
            content = _skip_partial_line(logs, trial_id, epoch, content, first - base, scan)
        scan.pending += content
        scan.cut_lines(ends=False)
        if not may_match and not scan.is_over:
            # Only the end of a line from the previous chunk was needed of this chunk.
            scan.skip_to(end)
    return False


def find_line_start(logs: TrialLogs, trial_id: int, epoch: int, offset: int, end: int) -> int:
    """Return the offset of the first line of an allocation that begins at `offset` or later.

    Return the first whole character at `offset` or later if no line begins within `PIECE_BYTES`, or
    before `end`: the offset is then inside a long line. Raises TableError and OSError.

    Args:
        logs: reads the log.
        trial_id: the trial.
        epoch: the number of the allocation within the trial.
        offset: an offset in the allocation's log, above 0.
        end: an offset in the allocation's log, above `offset`.
    """
    first, last = offset - 1, min(end, offset + PIECE_BYTES)
    content = b"".join(
        logs.read_content(trial_id, chunk, max(first, chunk.start), min(last, chunk.end))
        for chunk in logs.read_chunks(trial_id, epoch, first, last)
        if chunk.end > first
    )
    newline = content.find(b"\n", 0, len(content) - (last == end))
    if newline >= 0:
        return offset + newline
    characters = (place for place, byte in enumerate(content[1:4]) if byte & 0xC0 != 0x80)
    return offset + next(characters, 0)


def _skip_partial_line(
    logs: TrialLogs, trial_id: int, epoch: int, content: bytes, first: int, scan: Scan
) -> bytes:
    """Return the content without the end of a line that began in a skipped chunk.

    Move the scan to the beginning of the returned content. If a line begins exactly at `first`,
    return the whole content. If the content has no newline, return b"", and the scan stays inside
    the line. Raises TableError and OSError.

    Args:
        logs: reads the byte before the content.
        trial_id: the trial.
        epoch: the number of the allocation within the trial.
        content: the bytes that were read.
        first: the offset of the content in the allocation's log, above 0.
        scan: the scan, changed in place.
    """
    [previous] = logs.read_chunks(trial_id, epoch, first - 1, first)
    if logs.read_content(trial_id, previous, first - 1, first) == b"\n":
        scan.is_inside = False
        return content
    newline = content.find(b"\n") + 1
    scan.start += newline or len(content)
    scan.is_inside = newline == 0
    return content[newline:] if newline else b""


def _may_match(chunk: IndexedChunk, line_filter: LineFilter) -> bool:
    """Return whether the times of a chunk's lines may meet the filter's conditions on time.

    The filter's other conditions are not checked. Without time marks, return True only if the
    filter has no condition on time.
    """
    times = [time_ms for _, time_ms in chunk.marks]
    return line_filter.matches_time(min(times, default=None), max(times, default=None))


def _line_length(content: bytes, place: int, ends: bool) -> tuple[int, int] | None:
    """Return the length of the line at a place of the bytes, without and with the line break.

    A line break is LF or CR LF. A line above `PIECE_BYTES` is divided into pieces of whole
    characters, each without a line break. Pieces are returned even if the line has no end yet.
    Return None after the last line. Unless `ends`, return None for the rest after the last line
    break or piece.
    """
    newline = content.find(b"\n", place, place + PIECE_BYTES + 1)
    if newline >= 0:
        return newline - place - content[place:newline].endswith(b"\r"), newline - place + 1
    rest = len(content) - place
    if rest > PIECE_BYTES:
        length = _whole_characters_length(content[place : place + PIECE_BYTES])
        return length, length
    return (rest, rest) if ends and rest else None


def _whole_characters_length(piece: bytes) -> int:
    """Return the length of the bytes without an incomplete UTF-8 character at the end.

    `piece` must have at least 3 bytes. Invalid UTF-8 is kept.
    """
    for back in range(1, 4):
        byte = piece[-back]
        if byte & 0xC0 != 0x80:
            width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(piece) - back if width > back else len(piece)
    return len(piece)
