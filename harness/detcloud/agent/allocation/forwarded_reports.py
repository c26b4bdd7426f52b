"""The report lines of a trial's ranks that the agent sends to the cluster."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from detcloud.agent.allocation import limits
from detcloud.agent.allocation.end_backlog import ENDED_LIMITS, KILLED_LIMITS, EndBacklog
from detcloud.agent.allocation.token_bucket import TokenBucket
from detcloud.agent.allocation.trial_reports import ReportLine, ReportReader, warning_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory


class ForwardedReports:
    """The report lines of an allocation's ranks. A writer is a rank as text."""

    def __init__(
        self,
        directory: AllocationDirectory,
        reader: ReportReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the reports that `reader` reads. `clock` returns seconds that never decrease."""
        self._directory = directory
        self._reader = reader
        self._scanned: dict[str, int] = {}
        # The first writer of the next scan.
        self._scan_from = "0"
        self._look_bytes = TokenBucket(limits.LOOK_BYTES_PER_SECOND, limits.LOOK_BYTES_BURST, clock)
        self._refused: set[tuple[str, int]] = set()
        # The offset in each report file up to which the trial's log has warnings.
        self._warned: dict[str, int] = {}
        self._warnings = 0
        self._end_backlog: EndBacklog | None = None
        self._is_backlog_of_kill = False

    def scan(self, acked: Mapping[str, int]) -> Iterator[list[ReportLine]]:
        """Yield the new lines of each writer that has any, until SCANNED_BYTES_MAX bytes are read.

        The first scan of a writer begins at the offset in `acked`. The next scan begins with the
        first writer that was not reached.
        """
        writers = self._reader.writers()
        first = bisect_left(writers, int(self._scan_from), key=int)
        scanned = 0
        for writer in [*writers[first:], *writers[:first]]:
            self._scan_from = writer
            if scanned >= limits.SCANNED_BYTES_MAX:
                return
            offset = self._scanned.get(writer, acked.get(writer, 0))
            if lines := self._read_running(writer, offset, limits.SCAN_BYTES):
                scanned += sum(len(line.raw) for line in lines)
                self._scanned[writer] = lines[-1].offset
                yield lines
        self._scan_from = "0"

    def read_running(self, writer: str, offset: int, bytes_max: int) -> list[ReportLine]:
        """Return a running trial's complete lines after `offset`, about `bytes_max` bytes.

        Warnings replace too long and invalid lines. Each warning is also written to the trial's log
        once, up to WARNINGS_MAX; failures of the log are ignored. The list is empty without new
        lines or if the file is unreadable. It may also be empty because the skipped bytes of too
        long lines are limited per second; later calls continue.
        """
        lines = self._read_running(writer, offset, bytes_max)
        self._warn_of_lines(writer, lines)
        return lines

    def read_ended(
        self, writer: str, offset: int, bytes_max: int, acked: Mapping[str, int], *, killed: bool
    ) -> list[ReportLine]:
        """Return an ended trial's lines after `offset`, about `bytes_max` bytes.

        The backlog limits the lines. The first call computes the backlog from the offsets `acked`
        and writes a notice of omitted lines to the trial's log. The first call with `killed`
        computes the backlog again, with lower limits. Warnings replace too long and invalid
        lines, and are written to the trial's log once.
        """
        if self._end_backlog is None or killed > self._is_backlog_of_kill:
            self._is_backlog_of_kill = killed
            backlog_limits = KILLED_LIMITS if killed else ENDED_LIMITS
            self._end_backlog = EndBacklog(self._reader, acked, backlog_limits)
            if notice := self._end_backlog.notice:
                with contextlib.suppress(OSError):
                    self._directory.write_notices([f"[detcloud] out/: {notice}"])
        lines = self._end_backlog.lines(writer, offset, bytes_max)
        self._warn_of_lines(writer, lines)
        return lines

    def note_refused(self, writer: str, offset: int) -> None:
        """Note that the cluster has refused the line of `writer` that ends at `offset`.

        Write a warning to the trial's log once, except about the agent's own records.
        """
        if (writer, offset) not in self._refused and writer != "agent":
            self._warn(writer, "the cluster refused a line, which was skipped")
        self._refused.add((writer, offset))

    def replace_refused(self, writer: str, lines: list[ReportLine]) -> list[ReportLine]:
        """Return the lines of `writer`, with a warning in place of each refused line."""
        return [
            warning_line(line.offset, "the cluster refused a line")
            if (writer, line.offset) in self._refused
            else line
            for line in lines
        ]

    def _read_running(self, writer: str, offset: int, bytes_max: int) -> list[ReportLine]:
        """Return a writer's complete lines after `offset`, without warnings in the trial's log."""
        look_bytes_max = max(0, int(self._look_bytes.allowance()))
        before = self._reader.skipped_bytes
        lines = self._reader.read_lines(writer, offset, bytes_max, look_bytes_max=look_bytes_max)
        self._look_bytes.spend(self._reader.skipped_bytes - before)
        return lines

    def _warn_of_lines(self, writer: str, lines: list[ReportLine]) -> None:
        """Write each line's warning to the trial's log once."""
        before = self._warned.get(writer, 0)
        for line in lines:
            if line.warning and line.offset > before:
                self._warn(writer, line.warning)
                self._warned[writer] = line.offset

    def _warn(self, writer: str, warning: str) -> None:
        """Write a warning to the trial's log, unless WARNINGS_MAX are written. Ignore failures."""
        self._warnings += 1
        notices = [f"[detcloud] out/report-{writer}.jsonl: {warning}"]
        if self._warnings == limits.WARNINGS_MAX:
            notices.append("[detcloud] further skipped lines are not reported here")
        if self._warnings <= limits.WARNINGS_MAX:
            with contextlib.suppress(OSError):
                self._directory.write_notices(notices)
