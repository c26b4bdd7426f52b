"""Asynchronous halving by promotion: a trial goes on once it is among the best 1/divisor of its
rung as far as that is known, and waits until then.
"""

from control_plane.searchers.halving.asynchronous import AsyncHalving, HalvingState
from control_plane.searchers.halving.ranking import Result
from control_plane.searchers.halving.rungs import WORST_RESULT
from control_plane.searchers.method import Close, MethodStep, Operation, TrainTo


class PromotingHalving(AsyncHalving):
    """Promotes at most one trial for each result; one that would train nothing more passes on."""

    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trains = False
        while True:
            outstanding[rung] -= 1
            if rung == self._top_rung:
                results[rung] += 1
                if self._mark_reported(result.trial, closed=True):
                    operations.append(Close(result.trial))
                break
            promoted = self._find_promoted(rung, results[rung], result)
            results[rung] += 1
            if promoted is not result:
                self._mark_reported(result.trial, closed=False)
            if promoted is None:
                break
            result, trial, rung = promoted, promoted.trial, rung + 1
            outstanding[rung] += 1
            if self._move_to_rung(trial, rung).exited:
                result = Result(WORST_RESULT, trial)
            elif self._lengths[rung] > self._lengths[rung - 1]:
                operations.append(TrainTo(trial, self._lengths[rung]))
                trains = True
                break
        return self._finish_step(state, results, outstanding, operations, trains=trains)

    def _find_promoted(self, rung: int, before: int, result: Result) -> Result | None:
        """Return the result that is promoted now that this one came to the `before` others."""
        ranking = self._ranking(rung)
        index = ranking.insert(result)
        divisor = self._plan.divisor
        old, new = int(before / divisor), int((before + 1) / divisor)
        if index < new:
            return result
        if new == old:
            return None
        # One more may go on, and it is not the newcomer.
        candidate = ranking.result_at(old)
        status = self._statuses.status_of(candidate.trial)
        is_gone = status.closed and not status.exited
        return None if status.rung > rung or is_gone else candidate
