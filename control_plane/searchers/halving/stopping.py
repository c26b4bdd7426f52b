"""Asynchronous halving by stopping: a trial is closed at the first rung where it is not among the
best 1/divisor of those that came before it, and goes on at once where it is.
"""

from collections.abc import Sequence

from control_plane.searchers.halving.asynchronous import AsyncHalving, HalvingState
from control_plane.searchers.halving.ranking import Result
from control_plane.searchers.method import Close, MethodStep, Operation, TrainTo


class StoppingHalving(AsyncHalving):
    """Decides about a trial once, when its result comes in; the first of a rung always goes on."""

    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        return self._pass_rungs(state, self._lengths[rung], result)

    def _pass_rungs(
        self, state: HalvingState, length: float, result: Result
    ) -> MethodStep[HalvingState]:
        """Let a trial pass every rung that it has come to, or end it at one of them."""
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trial, status = result.trial, self._statuses.status_of(result.trial)
        while length >= self._lengths[status.rung]:
            rung = status.rung
            outstanding[rung] -= 1
            results[rung] += 1
            is_best = self._is_best(rung, results[rung], result)
            if status.exited:
                # Its result stays to be compared with.
                break
            if not is_best:
                operations.append(self._end_operation(trial))
                status = status._replace(closed=True)
                break
            status = status._replace(rung=rung + 1)
            outstanding[rung + 1] += 1
        if not status.closed:
            operations += self._continue_operations(trial, status.rung)
        self._statuses.set_status(trial, status)
        trains = not status.closed
        return self._finish_step(state, results, outstanding, operations, trains=trains)

    def _end_operation(self, trial: int) -> Operation:
        return Close(trial)

    def _continue_operations(self, trial: int, rung: int) -> Sequence[Operation]:
        """Return the operations by which a trial goes on to a rung."""
        return (TrainTo(trial, self._lengths[rung]),)

    def _is_best(self, rung: int, results: int, result: Result) -> bool:
        """Whether a trial goes on with this result, the latest of so many in its rung."""
        if rung == self._top_rung:
            return False
        index = self._ranking(rung).insert(result, before_equals=True)
        return index < max(int(results / self._plan.divisor), 1)
