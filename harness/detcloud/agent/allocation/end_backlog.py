"""The limited backlog of reports that the agent still sends after a trial's end.

The exit is sent after all other reports, so a trial with a long backlog would keep its slots for
minutes after its end. The agent therefore sends only a limited number of the oldest unsent lines.
From the later lines, the agent sends the important ones: checkpoints and validations. A warning
replaces the last omitted line.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detcloud.agent.allocation.trial_reports import (
    LOOK_BYTES_MAX,
    PRIORITY_KINDS,
    SCAN_BYTES,
    ReportLine,
    ReportReader,
    parse_line,
    warning_line,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_WORDS = (b"checkpoint", b"exit", b"validation")


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """The limits of an ended trial's backlog, of all writers together."""

    lines: int
    """The number of oldest lines that are all sent."""
    bytes: int
    """The size of the oldest lines that are all sent."""
    kept_lines: int = 5_000
    """The number of further lines about checkpoints and validations."""
    kept_bytes: int = 8 << 20
    """The size of further lines about checkpoints and validations."""
    searched_bytes: int = 64 << 20
    """The number of bytes that are searched for these further lines."""


# The agent sends at most 1000 lines per second of a trial, so this takes a minute.
ENDED_LIMITS = BacklogLimits(lines=60_000, bytes=64 << 20)
# Lower limits after a kill, because another trial waits for the slots.
KILLED_LIMITS = BacklogLimits(lines=10_000, bytes=8 << 20)


@dataclass
class _WriterBacklog:
    """The lines of a writer that are still sent."""

    whole_to: int
    """The offset up to which all lines are sent."""
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    """The offset and JSON text of each further line to send, by offset."""
    left_out: int = 0
    """The number of omitted lines."""
    left_out_to: int = 0
    """The offset after the last omitted line."""
    is_unread: bool = False
    """Whether bytes remain that were not searched for important lines."""


class EndBacklog:
    """The lines of an ended trial that are still sent, by writer.

    The constructor reads the report files from the acknowledged offsets `acked` on. `left_out` is
    the number of omitted lines of all writers. `is_unread` is whether further bytes were not even
    searched.
    """

    def __init__(
        self,
        reader: ReportReader,
        acked: Mapping[str, int],
        limits: BacklogLimits = ENDED_LIMITS,
    ) -> None:
        self._reader = reader
        self._lines_left = self.lines_max = limits.lines
        self._bytes_left = limits.bytes
        self._kept_lines_left = limits.kept_lines
        self._kept_bytes_left = limits.kept_bytes
        self._searched_bytes_left = limits.searched_bytes
        self._backlogs = {
            writer: self._plan_writer(writer, acked.get(writer, 0)) for writer in reader.writers()
        }
        self.left_out = sum(backlog.left_out for backlog in self._backlogs.values())
        self.is_unread = any(backlog.is_unread for backlog in self._backlogs.values())

    @property
    def notice(self) -> str:
        """A sentence for the trial's log with the number of omitted lines, or "" without any."""
        return self._describe(self.left_out, is_unread=self.is_unread)

    def lines(self, writer: str, offset: int, bytes_max: int) -> list[ReportLine]:
        """Return the writer's next lines to send after the offset, about `bytes_max` bytes.

        Return an empty list for an unknown writer or after the last line.
        """
        backlog = self._backlogs.get(writer)
        if backlog is None:
            return []
        if offset < backlog.whole_to:
            lines = self._reader.read_lines(writer, offset, bytes_max)
            within = [line for line in lines if line.offset <= backlog.whole_to]
            if within:
                return within
        first = bisect_right(backlog.kept, offset, key=_offset)
        lines, size = [], 0
        for end, raw in backlog.kept[first:]:
            if lines and size >= bytes_max:
                break
            lines.append(parse_line(raw, end))
            size += len(raw)
        return lines

    def _plan_writer(self, writer: str, offset: int) -> _WriterBacklog:
        backlog = _WriterBacklog(self._end_of_whole(writer, offset))
        offset = backlog.whole_to
        while self._searched_bytes_left > 0:
            lines, count, end = self._reader.search_lines(writer, offset, KEPT_WORDS)
            if end == offset:
                break
            kept = [(line.offset, line.raw) for line in lines if self._keep(line)]
            backlog.kept += kept
            if count > len(kept):
                backlog.left_out += count - len(kept)
                backlog.left_out_to = _last_left_out(kept, end)
            self._searched_bytes_left -= min(end - offset, LOOK_BYTES_MAX)
            offset = end
        else:
            backlog.is_unread = self._reader.has_more(writer, offset)
        if backlog.left_out:
            notice = self._describe(backlog.left_out, is_unread=backlog.is_unread)
            warning = (backlog.left_out_to, warning_line(0, notice).raw)
            insort(backlog.kept, warning, key=_offset)
        return backlog

    def _end_of_whole(self, writer: str, offset: int) -> int:
        """Return the offset after the last line of the writer's part that is sent completely.

        Subtract the lines and bytes from the limits of all writers. A skipped line counts with all
        bytes that were read, so that a file of skipped lines takes no longer than other files.
        """
        while self._lines_left > 0 and self._bytes_left > 0:
            lines = self._reader.read_lines(writer, offset, SCAN_BYTES)
            if not lines:
                break
            for line in lines:
                size = min(line.offset - offset, LOOK_BYTES_MAX)
                if self._lines_left <= 0 or self._bytes_left < size:
                    self._lines_left = 0
                    return offset
                self._lines_left -= 1
                self._bytes_left -= size
                offset = line.offset
        return offset

    def _keep(self, line: ReportLine) -> bool:
        """Whether the line is an important line to send, and fits into the limits.

        If so, subtract the line from the limits.
        """
        is_validation = line.kind == "metrics" and line.is_urgent
        if line.kind not in PRIORITY_KINDS and not is_validation:
            return False
        if self._kept_lines_left <= 0 or self._kept_bytes_left < len(line.raw):
            return False
        self._kept_lines_left -= 1
        self._kept_bytes_left -= len(line.raw)
        return True

    def _describe(self, left_out: int, *, is_unread: bool) -> str:
        if not left_out:
            return ""
        following = " and what follows them" if is_unread else ""
        return (
            f"{left_out} lines{following} are omitted: of the lines not yet sent when the "
            f"trial ended, {self.lines_max} are sent, and all lines of checkpoints and validations"
        )


def _last_left_out(kept: list[tuple[int, bytes]], end: int) -> int:
    """Return the offset after the last line up to `end` that is not in `kept`."""
    for kept_end, raw in reversed(kept):
        if kept_end != end:
            break
        end = kept_end - len(raw) - 1
    return end


def _offset(entry: tuple[int, bytes]) -> int:
    return entry[0]
