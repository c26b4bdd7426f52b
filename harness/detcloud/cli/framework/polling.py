"""Repeated requests of commands that watch the cluster: their pauses, and the wait for an end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from detcloud.client import Experiment


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
END_POLLS, END_POLL_SECONDS = 20, 0.5
"""The polls for the end of a run after its connection has ended, and the pause between them."""


def ends_soon(run: Experiment) -> bool:
    """Return whether a run ends within the next END_POLLS, and update the fields of the run.

    The connection to a trial may end before the cluster stores the end of the run.

    Raises:
        DetcloudError: a request failed.
    """
    for _ in range(END_POLLS):
        run.refresh()
        if run.has_ended:
            return True
        time.sleep(END_POLL_SECONDS)
    return False
