"""Synchronous halving: each rung promotes a fixed number of trials, the best of the rung.

The promoted trials do not depend on the order of the results.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (2016), with the rungs of
Determined 0.12. A trial is promoted as soon as no later result can change the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from sys import float_info
from typing import Literal

from control_plane.evolve import evolve
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.bracket import Bracket, ClosingState
from control_plane.searchers.halving.ranking import Result
from control_plane.searchers.halving.rungs import WORST_RESULT, power, rung_lengths
from control_plane.searchers.method import (
    Close,
    Create,
    Event,
    MethodStep,
    Operation,
    Tally,
    TrainTo,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)


@dataclass(frozen=True, slots=True)
class SyncHalvingPlan:
    """The plan of a synchronous halving."""

    lengths: tuple[int, ...]
    """The length of each rung; strictly increasing."""
    trials: tuple[int, ...]
    """The number of trials that train to each rung's length; never increasing. Exception: if the
    first rung has 0 trials, all other rungs have 1.
    """
    smaller_is_better: bool
    rules: SearchRules
    kind: Literal["sync_halving"] = "sync_halving"

    @property
    def max_length(self) -> int:
        """Return the longest training of a trial."""
        return self.lengths[-1]

    @property
    def first_trials(self) -> int:
        """Return the number of trials; the search creates all of them at the start."""
        return self.trials[0]

    @property
    def trial_count(self) -> int:
        """Return the number of trials of the search."""
        return self.first_trials

    @property
    def work(self) -> int:
        """Return the units of training of all trials; in the step era, plus the validations."""
        return _total_work(self.lengths, self.trials, int(self.rules.progress_in_workloads))


@dataclass(frozen=True, slots=True)
class RungLadder:
    """A maker of plans with rungs at about max_length / divisor^k."""

    max_length: int
    divisor: float
    """The reduction factor, above 1."""
    smaller_is_better: bool
    rules: SearchRules

    def plan_within_budget(self, num_rungs: int, budget: int) -> SyncHalvingPlan:
        """Return a plan whose trials train about `budget` units in total.

        Each rung has about 1/divisor of the trials of the previous rung. If the budget is too
        small, the first rung has 0 trials. The plan can exceed the budget slightly: each later rung
        has at least 1 trial, and lengths are increased to be distinct.
        """
        lengths = self._rung_lengths(num_rungs)
        # Infinity cannot be converted to an integer; the largest float exceeds any budget, too.
        powers = (power(self.divisor, num_rungs - 1 - k) for k in range(num_rungs))
        trials = [max(int(min(value, float_info.max)), 1) for value in powers]
        scale = budget / _total_work(lengths, trials)
        trials = [int(scale * count) for count in trials]
        for k in range(1, num_rungs):
            trials[k] = max(min(trials[k], trials[k - 1]), 1)
        return self._make_plan(lengths, trials)

    def plan_with_trials(self, num_rungs: int, count: int) -> SyncHalvingPlan:
        """Return a plan for `count` trials. Rung k has count / divisor^k trials, at least 1."""
        trials = [max(int(count / power(self.divisor, k)), 1) for k in range(num_rungs)]
        return self._make_plan(self._rung_lengths(num_rungs), trials)

    def _rung_lengths(self, num_rungs: int) -> list[int]:
        return list(rung_lengths(self.max_length, self.divisor, num_rungs))

    def _make_plan(self, lengths: list[int], trials: list[int]) -> SyncHalvingPlan:
        for k in range(1, len(lengths)):
            lengths[k] = max(lengths[k], lengths[k - 1] + 1)
        return SyncHalvingPlan(tuple(lengths), tuple(trials), self.smaller_is_better, self.rules)


@dataclass(frozen=True)
class SyncHalvingState(ClosingState):
    """The state of a synchronous halving."""

    created: int
    """Trials that the method requested."""
    results: tuple[int, ...]
    """The number of received results by rung."""
    done: float = 0.0
    """Reported units of training; in the step era, plus completed validations."""
    closing: int = 0
    closing_from: int | None = None
    kind: Literal["sync_halving"] = "sync_halving"


class SyncHalving(Bracket[SyncHalvingPlan, SyncHalvingState]):
    """The search method of synchronous halving."""

    def first_step(self) -> MethodStep[SyncHalvingState]:
        """Return the first state, and the creation of all trials."""
        count, first = self._plan.first_trials, self._lengths[0]
        create = Create(count, "Sampled", first_point=0, length=first, closed=False)
        return MethodStep(SyncHalvingState(count, (0,) * (self._top_rung + 1)), (create,))

    def on_event(self, state: SyncHalvingState, event: Event) -> MethodStep[SyncHalvingState]:
        """Return the next state and the operations after an event.

        A result can promote a trial to the next rung. An early exit of a trial without a result in
        the current rung counts as the worst result. Progress only changes the completed share.
        """
        match event:
            case TrialProgressed(units=units):
                return MethodStep(evolve(state, done=state.done + units))
            case TrialLengthReached():
                awaited = self._awaited_result(event)
                if awaited is None:
                    return MethodStep(state)
                state = evolve(state, done=state.done + self._plan.rules.progress_in_workloads)
                return self._answer_result(state, *awaited)
            case TrialExitedEarly():
                rung, only_waited = self._mark_exited(event)
                if only_waited:
                    return MethodStep(state)
                return self._answer_result(state, rung, Result(WORST_RESULT, event.trial))
            case _:
                return MethodStep(state)

    def progress(self, state: SyncHalvingState, tally: Tally) -> float:
        """Return the completed share of the plan's work, at most 1.

        Early exits leave some work undone, so an ended search can have a share below 1.
        """
        work = self._plan.work
        return min(1.0, state.done / work) if work else 0.0

    def _answer_result(
        self, state: SyncHalvingState, rung: int, result: Result
    ) -> MethodStep[SyncHalvingState]:
        """Return the next state and the operations after a trial's result in a rung.

        If an exited trial is promoted, the worst result counts in the next rung at once.
        """
        results = list(state.results)
        operations: list[Operation] = []
        while rung < self._top_rung:
            promoted = self._find_promoted(rung, results[rung], result)
            results[rung] += 1
            if promoted is not result:
                self._mark_reported(result.trial, closed=False)
            if promoted is None:
                break
            trial, rung = promoted.trial, rung + 1
            if not self._move_to_rung(trial, rung).exited:
                operations.append(TrainTo(trial, self._lengths[rung]))
                break
            result = Result(WORST_RESULT, trial)
        else:
            results[rung] += 1
            if self._mark_reported(result.trial, closed=True):
                operations.append(Close(result.trial))
        return MethodStep(self._close_full_rungs(evolve(state, results=tuple(results))), operations)

    def _find_promoted(self, rung: int, before: int, result: Result) -> Result | None:
        """Write a result to the ranking of a rung, and return the result that is promoted.

        `before` is the number of earlier results in the rung. Return None if later results can
        still change the decision.
        """
        ranking = self._ranking(rung)
        index = ranking.insert(result)
        not_promoted = self._plan.trials[rung] - self._plan.trials[rung + 1]
        certain = before + 1 - not_promoted
        if certain <= 0:
            return None
        # Each result makes one more promotion certain. All better results are promoted already.
        return result if index < certain else ranking.result_at(certain - 1)

    def _close_full_rungs(self, state: SyncHalvingState) -> SyncHalvingState:
        """Start closing the waiting trials of the rungs that have all results.

        Return the next state. Rungs fill up in order, from the first.
        """
        expected = zip(state.results[: self._top_rung], self._plan.trials, strict=False)
        full = sum(results == trials for results, trials in expected)
        if full == state.closing:
            return state
        return evolve(state, closing=full, closing_from=0)


def _total_work(lengths: Sequence[int], trials: Sequence[int], validation: int = 0) -> int:
    """Return the units that all trials train, plus `validation` for each trial in each rung."""
    steps = (length - before for before, length in pairwise((0, *lengths)))
    return sum((units + validation) * count for units, count in zip(steps, trials, strict=True))
