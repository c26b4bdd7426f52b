"""Asynchronous halving by promotion: a trial goes on once it is among the best 1/divisor of its
rung as far as that is known, and waits until then.
"""

from control_plane.searchers.halving import Halving, HalvingState
from control_plane.searchers.method import Close, MethodStep, Operation, TrainTo
from control_plane.searchers.ranking import Result
from control_plane.searchers.rungs import WORST


class Promotion(Halving):
    """Promotes at most one trial for each result, and passes on what would train nothing."""

    def _carried_on(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trains = False
        while True:
            outstanding[rung] -= 1
            if rung == self._top:
                results[rung] += 1
                if self._stays(result.trial, closed=True):
                    operations.append(Close(result.trial))
                break
            promoted = self._promoted(rung, results[rung], result)
            results[rung] += 1
            if promoted is not result:
                self._stays(result.trial, closed=False)
            if promoted is None:
                break
            result, trial, rung = promoted, promoted.trial, rung + 1
            outstanding[rung] += 1
            if self._goes_on(trial, rung).exited:
                result = Result(WORST, trial)
            elif self._lengths[rung] > self._lengths[rung - 1]:
                operations.append(TrainTo(trial, self._lengths[rung]))
                trains = True
                break
        return self._finished(state, results, outstanding, operations, trains=trains)

    def _promoted(self, rung: int, before: int, result: Result) -> Result | None:
        """The result that is promoted now that this one came to the `before` others."""
        ranking = self._ranking(rung)
        index = ranking.insert(result)
        divisor = self._plan.divisor
        old, new = int(before / divisor), int((before + 1) / divisor)
        if index < new:
            return result
        if new == old:
            return None
        # One more may go on, and it is not the newcomer.
        candidate = ranking.at(old)
        standing = self._roster.standing(candidate.trial)
        is_gone = standing.closed and not standing.exited
        return None if standing.rung > rung or is_gone else candidate
