"""Asynchronous halving by stopping: a trial is closed at the first rung where it is not among the
best 1/divisor of those that came before it, and goes on at once where it is.
"""

from collections.abc import Sequence

from control_plane.searchers.halving import Halving, HalvingState
from control_plane.searchers.method import Close, MethodStep, Operation, TrainTo
from control_plane.searchers.ranking import Result


class Stopping(Halving):
    """Decides about a trial once, when its result comes in; the first of a rung always goes on."""

    def _carried_on(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        return self._passed(state, self._lengths[rung], result)

    def _passed(
        self, state: HalvingState, length: float, result: Result
    ) -> MethodStep[HalvingState]:
        """Lets a trial through every rung that it has come to, or ends it at one of them."""
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trial, standing = result.trial, self._roster.standing(result.trial)
        while length >= self._lengths[standing.rung]:
            rung = standing.rung
            outstanding[rung] -= 1
            results[rung] += 1
            is_best = self._is_best(rung, results[rung], result)
            if standing.exited:
                # It is there to be compared with.
                break
            if not is_best:
                operations.append(self._end(trial))
                standing = standing._replace(closed=True)
                break
            standing = standing._replace(rung=rung + 1)
            outstanding[rung + 1] += 1
        if not standing.closed:
            operations += self._onward(trial, standing.rung)
        self._roster.stand(trial, standing)
        trains = not standing.closed
        return self._finished(state, results, outstanding, operations, trains=trains)

    def _end(self, trial: int) -> Operation:
        return Close(trial)

    def _onward(self, trial: int, rung: int) -> Sequence[Operation]:
        """What a trial is told that goes on to a rung."""
        return (TrainTo(trial, self._lengths[rung]),)

    def _is_best(self, rung: int, results: int, result: Result) -> bool:
        """Whether a trial goes on with this result, the last of so many in its rung."""
        if rung == self._top:
            return False
        index = self._ranking(rung).insert(result, before_equals=True)
        return index < max(int(results / self._plan.divisor), 1)
