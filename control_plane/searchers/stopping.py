"""Asynchronous halving by stopping: a trial is closed at the first rung where it is not among the
best 1/divisor of those that came before it, and goes on at once where it is.
"""

from control_plane.searchers.halving import Halving, HalvingState
from control_plane.searchers.method import Close, MethodStep, Operation, TrainTo
from control_plane.searchers.ranking import Result


class Stopping(Halving):
    """Decides about a trial once, when its result comes in; the first of a rung always goes on."""

    def _carried_on(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trial, trains = result.trial, False
        standing = self._roster.standing(trial)
        while True:
            outstanding[rung] -= 1
            results[rung] += 1
            is_best = self._is_best(rung, results[rung], result)
            if standing.exited:
                # It is there to be compared with.
                break
            if not is_best:
                operations.append(Close(trial))
                standing = standing._replace(closed=True)
                break
            rung += 1
            standing = standing._replace(rung=rung)
            outstanding[rung] += 1
            if self._lengths[rung] > self._lengths[rung - 1]:
                operations.append(TrainTo(trial, self._lengths[rung]))
                trains = True
                break
        self._roster.stand(trial, standing)
        return self._finished(state, results, outstanding, operations, trains=trains)

    def _is_best(self, rung: int, results: int, result: Result) -> bool:
        """Whether a trial goes on with this result, the last of so many in its rung."""
        if rung == self._top:
            return False
        index = self._ranking(rung).insert(result, before_equals=True)
        return index < max(int(results / self._plan.divisor), 1)
