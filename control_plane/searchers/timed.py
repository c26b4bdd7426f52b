"""Asynchronous halving by stopping, of trials whose length is their own business: every validation
report tells how long a trial has trained, by a time metric, and whether it is stopped.

Source: Determined 0.38, which has this form alone.
"""

from control_plane.searchers.halving import HalvingState
from control_plane.searchers.method import Event, MethodStep, Operation, Stop, TrialMeasured
from control_plane.searchers.ranking import Result
from control_plane.searchers.stopping import Stopping


class TimedStopping(Stopping):
    """Passes a trial through every rung whose time it has come to, or stops it there."""

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a report or an end."""
        if isinstance(event, TrialMeasured):
            return self._measured(state, event)
        return super().on_event(state, event)

    def _measured(self, state: HalvingState, event: TrialMeasured) -> MethodStep[HalvingState]:
        standing = self._roster.standing(event.trial)
        if standing.closed or event.time < self._lengths[standing.rung]:
            return MethodStep(state)
        signed = event.metric if self._plan.smaller_is_better else -event.metric
        result = Result(signed, event.trial)
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        while event.time >= self._lengths[standing.rung]:
            outstanding[standing.rung] -= 1
            results[standing.rung] += 1
            if not self._is_best(standing.rung, results[standing.rung], result):
                operations.append(Stop(event.trial))
                standing = standing._replace(closed=True)
                break
            standing = standing._replace(rung=standing.rung + 1)
            outstanding[standing.rung] += 1
        self._roster.stand(event.trial, standing)
        return self._finished(state, results, outstanding, operations, trains=not operations)
