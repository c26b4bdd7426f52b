"""The marks of deleted logs and metrics, which are set before the data is deleted."""

from dataclasses import replace

from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.evolve import evolve


def expire_data(state: TrialState, message: DataExpired, context: StepContext) -> TrialState:
    """Mark the logs or the metrics of all runs as deleted. The reply is the epoch of each mark.

    An ended trial keeps the time of a mark that has the present epoch. A trial that has not ended
    changes nothing, and replies with its earlier marks.
    """
    expired = state.expired_data
    if state.status.is_final:
        if message.logs and expired.logs_epoch < state.epoch:
            expired = replace(expired, logs_epoch=state.epoch, logs_ms=context.now_ms)
        if message.metrics and expired.metrics_epoch < state.epoch:
            expired = replace(expired, metrics_epoch=state.epoch, metrics_ms=context.now_ms)
    context.reply = (expired.logs_epoch, expired.metrics_epoch)
    return state if expired == state.expired_data else evolve(state, deletions=expired)
