"""The pauses of commands that watch the cluster by repeated requests."""

from __future__ import annotations

from typing import NamedTuple


class PollingTimes(NamedTuple):
    """Pauses between requests, in seconds."""

    follow_first: float = 0.2
    """The first pause of `detcloud follow`. Later pauses are longer."""
    follow_share_max: float = 0.2
    """The maximum share of time for fetching the trials of a large experiment."""
    logs: float = 1.0
    """The pause between two requests for new text or lines of a log."""
    deletion: float = 0.5
    """The pause between two requests for the state of an experiment that is being deleted."""


TIMES = PollingTimes()
