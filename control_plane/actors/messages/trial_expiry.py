"""The collector's message to a trial about expired logs and metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataExpired:
    """Command of the collector: mark the logs or the detailed metrics of all runs as deleted.

    A trial that has not ended changes nothing. The reply is the epoch of the last run whose logs
    are marked, and the epoch of the last run whose metrics are marked. Each is 0 without a mark.
    """

    logs: bool
    """Whether the retention of the logs has ended."""
    metrics: bool
    """Whether the retention of detailed metrics has ended."""
