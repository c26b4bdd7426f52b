"""The part of a trial's log that the agent sends to the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcloud.agent.allocation.trial_log import (
    KILLED_LOG_BYTES_MAX,
    LOG_NOTICES_BYTES_MAX,
    LogMarks,
    is_hole,
    log_size,
    read_log,
    whole_lines,
)

if TYPE_CHECKING:
    from detcloud.agent.allocation.directory import AllocationDirectory


class ForwardedLog:
    """The log of an allocation, from the acknowledged offset to a limit."""

    acked = 0
    """The offset up to which the cluster has acknowledged the log."""

    def __init__(self, directory: AllocationDirectory, bytes_max: int) -> None:
        """Create the reader of the log. `bytes_max` limits the trial's output in the log."""
        self._directory = directory
        self._bytes_max = bytes_max + LOG_NOTICES_BYTES_MAX
        self._is_cut = False
        self._scanned = 0
        self._marks = LogMarks()
        self._refused_to = 0
        self._in_gang: bool | None = None

    def scan(self) -> bool:
        """Return whether the log has grown since the last scan. Record the size and the time."""
        size = log_size(self._directory.log)
        has_grown = size > self._scanned
        self._scanned = size
        self._marks.record_size(size)
        return has_grown

    def acknowledge(self, offset: int) -> None:
        """Set the acknowledged offset, even if lower than before, and delete earlier marks."""
        self.acked = offset
        self._marks.discard_before(offset)

    def replace_refused(self, offset: int) -> None:
        """Send `?` in place of the bytes before `offset`, which the cluster has refused."""
        self._refused_to = offset

    def marks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the marks of log bytes `start` to `end`: offset, epoch milliseconds first seen."""
        return self._marks.marks_between(start, end)

    def read(self, bytes_max: int, *, ended: bool, killed: bool) -> tuple[int, str, bool]:
        """Read at most `bytes_max` bytes of the log after the acknowledged offset.

        Return the acknowledged offset, the text, and whether more text follows. Beyond the limit,
        the text is the rest of a notice, or "" if the log is not longer. A running trial of several
        nodes sends whole lines only, as far as possible.

        Args:
            ended: whether the trial has ended, so that its last bytes are complete.
            killed: whether the trial was killed. After the end, this lowers the limit, once.
        """
        offset = self.acked
        if offset < self._refused_to:
            return offset, "?" * min(bytes_max, self._refused_to - offset), True
        if ended and killed:
            self._cut()
        if offset < self._bytes_max and is_hole(self._directory.log, offset):
            self._bytes_max = offset
        limit = self._bytes_max
        if offset >= limit:
            return offset, self._notice(limit)[offset - limit :][:bytes_max], False
        bytes_max = min(bytes_max, limit - offset)
        text = read_log(self._directory.log, offset, bytes_max, ended=ended)
        has_more = offset + len(text.encode()) < log_size(self._directory.log) and bool(text)
        if not ended and self._is_shared():
            text = whole_lines(text) or (text if has_more else "")
        return offset, text, has_more

    def _cut(self) -> None:
        """Lower the limit to KILLED_LOG_BYTES_MAX after the acknowledged offset, once."""
        if not self._is_cut:
            self._is_cut = True
            self._bytes_max = min(self._bytes_max, self.acked + KILLED_LOG_BYTES_MAX)

    def _notice(self, limit: int) -> str:
        """Return the notice that replaces the log beyond `limit`, or "" for a shorter log."""
        beyond = log_size(self._directory.log) - limit
        return "\n[detcloud] the rest of the log is not forwarded\n" if beyond > 0 else ""

    def _is_shared(self) -> bool:
        """Return whether the trial has several nodes, so that log lines must not be mixed."""
        if self._in_gang is None:
            spec = self._directory.read_spec()
            self._in_gang = spec is not None and int(spec.get("nodes", 1)) > 1
        return self._in_gang
