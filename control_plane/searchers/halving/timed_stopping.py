"""Asynchronous halving by stopping, measured by a time metric: every validation reports how long
the trial has trained, and trials train until they are stopped.

Source: Determined 0.38, which has this form alone.
"""

from collections.abc import Sequence

from control_plane.searchers.halving.asynchronous import HalvingState
from control_plane.searchers.halving.stopping import StoppingHalving
from control_plane.searchers.method import (
    Event,
    MethodStep,
    Operation,
    Stop,
    TrialValidationReported,
)


class TimedStoppingHalving(StoppingHalving):
    """Compares a trial at every rung whose time it has reached."""

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a report or an end."""
        if not isinstance(event, TrialValidationReported):
            return super().on_event(state, event)
        status = self._statuses.status_of(event.trial)
        if status.closed or event.time < self._lengths[status.rung]:
            return MethodStep(state)
        return self._pass_rungs(state, event.time, self._make_result(event.trial, event.metric))

    def _end_operation(self, trial: int) -> Operation:
        return Stop(trial)

    def _continue_operations(self, trial: int, rung: int) -> Sequence[Operation]:
        """Return nothing: the trial trains on anyway."""
        return ()
