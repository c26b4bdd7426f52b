"""Asynchronous halving by stopping, of trials whose length is their own business: every validation
report tells how long a trial has trained, by a time metric, and whether it is stopped.

Source: Determined 0.38, which has this form alone.
"""

from collections.abc import Sequence

from control_plane.searchers.halving import HalvingState
from control_plane.searchers.method import Event, MethodStep, Operation, Stop, TrialMeasured
from control_plane.searchers.stopping import Stopping


class TimedStopping(Stopping):
    """Compares a trial at every rung whose time it has come to."""

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a report or an end."""
        if not isinstance(event, TrialMeasured):
            return super().on_event(state, event)
        standing = self._roster.standing(event.trial)
        if standing.closed or event.time < self._lengths[standing.rung]:
            return MethodStep(state)
        return self._passed(state, event.time, self._result(event.trial, event.metric))

    def _end(self, trial: int) -> Operation:
        return Stop(trial)

    def _onward(self, trial: int, rung: int) -> Sequence[Operation]:
        """Nothing: it trains anyway."""
        return ()
