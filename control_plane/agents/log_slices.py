"""Search of several trials' logs for the lines of a period, with bounded work."""

from control_plane.agents.log_scan import (
    SCANNED_BYTES_MAX,
    SCANNED_CHUNKS_MAX,
    LineFilter,
    LogLine,
    LogPosition,
    Scan,
    scan_allocation,
)
from control_plane.agents.logs import IndexedChunk, TrialLogs

LOOKUPS_MAX = 200
"""The number of index lookups after which a search ends. Each allocation costs a lookup, and the
beginning of a period in a log costs further lookups.
"""
# The nodes of a gang send their lines independently, so that a log is sorted by time roughly only.
DISORDER_MS = 60_000
"""The time in ms by which a line of a log may be older than an earlier line, and by which the clock
of a machine may differ from the cluster's clock.
"""
# The search for the beginning of a period ends this many bytes before the period.
_PRECISION_BYTES = 16 * 1024
_FIRST_STEP_BYTES = 8 * 1024


class SliceSearch:
    """A search for the lines of a period in the logs of several trials, trial after trial.

    All calls of `read_trial` share the limits on lines, bytes, chunks and lookups.
    """

    def __init__(self, logs: TrialLogs, line_filter: LineFilter, limit: int) -> None:
        """Create the search. `limit` is the maximum number of lines."""
        self._logs = logs
        self._filter = line_filter
        self._limit = limit
        self._bytes_left = SCANNED_BYTES_MAX
        self._chunks_left = SCANNED_CHUNKS_MAX
        self._lookups_left = LOOKUPS_MAX
        self.lines: list[tuple[int, LogLine]] = []
        """The lines found so far, each with the id of the trial."""

    @property
    def is_over(self) -> bool:
        """Whether a limit is reached, so that `read_trial` would find nothing."""
        is_spent = min(self._bytes_left, self._chunks_left, self._lookups_left) <= 0
        return is_spent or len(self.lines) >= self._limit

    def read_trial(
        self, trial_id: int, epochs: int, after: LogPosition, *, ended: bool
    ) -> LogPosition | None:
        """Add the lines of a trial from position `after` on to `lines`, until a limit is reached.

        Whole lines are added, and a last line without a newline only if the trial has ended or has
        a later allocation.

        Args:
            trial_id: the trial.
            epochs: the number of the trial's allocations.
            after: the returned position of the previous search, or LogPosition().
            ended: whether the log will not grow any more.

        Returns:
            The position from which another search continues, or None if the trial has no more lines
            of the period.

        Raises:
            TableError, OSError: the state table or the object store failed.
            ValueError: the filter's level is unknown.
        """
        scan = Scan(self._filter, self._limit - len(self.lines), *after)
        scan.bytes_left, scan.chunks_left = self._bytes_left, self._chunks_left
        is_done = self._scan_trial(scan, trial_id, epochs, ended)
        self._bytes_left, self._chunks_left = scan.bytes_left, scan.chunks_left
        self.lines += ((trial_id, line) for line in scan.lines)
        return None if is_done else scan.position

    def _scan_trial(self, scan: Scan, trial_id: int, epochs: int, ended: bool) -> bool:
        """Scan the allocations of a trial from the scan's position on. Return whether no more lines
        of the period follow.
        """
        base = 0
        until_ms = self._filter.until_ms
        stop_ms = None if until_ms is None else until_ms + DISORDER_MS
        for epoch in range(1, epochs + 1):
            last = self._read_chunk_before(trial_id, epoch, None)
            log_end = base + (last.end if last else 0)
            if last and scan.start < log_end:
                if scan.start <= base:
                    place = self._find_period(trial_id, epoch, last)
                    # A line never continues in the next allocation.
                    scan.start, scan.is_inside = base + place, place > 0
                if scan_allocation(
                    self._logs, trial_id, epoch, base, log_end, scan, stop_ms=stop_ms
                ):
                    return True
                if not scan.is_over and (ended or epoch < epochs):
                    scan.cut_lines(ends=True)
                if scan.is_over and scan.start < log_end:
                    return False
                scan.pending, scan.marks = b"", []
                if epoch < epochs:
                    scan.start = log_end
            base = log_end
        return True

    def _find_period(self, trial_id: int, epoch: int, last: IndexedChunk) -> int:
        """Return an offset in an allocation's log before which no line of the period begins.

        The offset is at most `_PRECISION_BYTES` and a chunk before the first such line. Return the
        end of the log if the period begins later, and 0 without a beginning of the period.

        Args:
            trial_id: the trial.
            epoch: the number of the allocation within the trial.
            last: the last chunk of the log.
        """
        if self._filter.since_ms is None:
            return 0
        since_ms = self._filter.since_ms - DISORDER_MS
        if _is_older(last, since_ms):
            return last.end
        low, high, step = 0, last.start, _FIRST_STEP_BYTES
        is_found = False
        while high - low > _PRECISION_BYTES:
            # Most periods are recent: steps back from the end grow until an older chunk is found.
            place = (low + high) // 2 if is_found else max(low, high - step)
            step *= 4
            chunk = self._read_chunk_before(trial_id, epoch, place + 1)
            if chunk is None or _is_older(chunk, since_ms):
                is_found = True
                low = place
            else:
                high = chunk.start
        return low

    def _read_chunk_before(
        self, trial_id: int, epoch: int, before: int | None
    ) -> IndexedChunk | None:
        """Read the index of a chunk as `TrialLogs.read_chunk_before` does, and count the lookup."""
        self._lookups_left -= 1
        return self._logs.read_chunk_before(trial_id, epoch, before)


def _is_older(chunk: IndexedChunk, since_ms: int) -> bool:
    """Return whether the whole chunk was seen before `since_ms`, or has no times."""
    return not chunk.marks or chunk.marks[-1][1] < since_ms
