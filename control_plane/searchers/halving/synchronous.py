"""Synchronous halving: as many trials go on from a rung as the next one has room for, and they are
its best, in whatever order the results come in.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (2016), with the rungs of
Determined 0.12: a trial goes on as soon as no result to come can take its place.
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
    """Rung k has room for `trials[k]` trials, which train to `lengths[k]`: the first one for all
    trials, each further one for the best of the rung before.

    `lengths` increases, `trials` never does; but where the first rung has none, the others say 1.
    """

    lengths: tuple[int, ...]
    trials: tuple[int, ...]
    smaller_is_better: bool
    rules: SearchRules
    kind: Literal["sync_halving"] = "sync_halving"

    @property
    def max_length(self) -> int:
        """How long a trial trains at most."""
        return self.lengths[-1]

    @property
    def first_trials(self) -> int:
        """How many trials are created, all at the start."""
        return self.trials[0]

    @property
    def trial_count(self) -> int:
        """How many trials are created in the end."""
        return self.first_trials

    @property
    def work(self) -> int:
        """Units of training of all trials together and, in the step era, their validations."""
        return _total_work(self.lengths, self.trials, int(self.rules.progress_in_workloads))


@dataclass(frozen=True, slots=True)
class RungLadder:
    """Makes plans with rungs at about max_length / divisor^k, for a divisor > 1."""

    max_length: int
    divisor: float
    smaller_is_better: bool
    rules: SearchRules

    def plan_within_budget(self, num_rungs: int, budget: int) -> SyncHalvingPlan:
        """Plan as many trials as `budget` units of training are enough for, which can be none.

        More is trained where a rung has a trial all the same, or is a unit longer than it should.
        """
        lengths = self._rung_lengths(num_rungs)
        # The greatest float is as good as any number that no budget reaches.
        powers = (power(self.divisor, num_rungs - 1 - k) for k in range(num_rungs))
        trials = [max(int(min(one, float_info.max)), 1) for one in powers]
        scale = budget / _total_work(lengths, trials)
        trials = [int(scale * count) for count in trials]
        for k in range(1, num_rungs):
            trials[k] = max(min(trials[k], trials[k - 1]), 1)
        return self._make_plan(lengths, trials)

    def plan_with_trials(self, num_rungs: int, count: int) -> SyncHalvingPlan:
        """Plan `count` trials, and in each further rung 1/divisor of the last, at least one."""
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
    """Progress of the bracket. `results`: how many came in by rung; `done`: units of work."""

    created: int
    results: tuple[int, ...]
    done: float = 0.0
    closing: int = 0
    closing_from: int | None = None
    kind: Literal["sync_halving"] = "sync_halving"


class SyncHalving(Bracket[SyncHalvingPlan, SyncHalvingState]):
    """A bracket whose rungs take exactly as many trials as planned."""

    def first_step(self) -> MethodStep[SyncHalvingState]:
        """Create every trial, if there is any."""
        count, first = self._plan.first_trials, self._lengths[0]
        create = Create(count, "Sampled", first_point=0, length=first, closed=False)
        return MethodStep(SyncHalvingState(count, (0,) * (self._top_rung + 1)), (create,))

    def on_event(self, state: SyncHalvingState, event: Event) -> MethodStep[SyncHalvingState]:
        """Answer a result or an early exit, which is the worst result."""
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
        """Compute the share of the plan's work that is done; early exits leave some work undone."""
        work = self._plan.work
        return min(1.0, state.done / work) if work else 0.0

    def _answer_result(
        self, state: SyncHalvingState, rung: int, result: Result
    ) -> MethodStep[SyncHalvingState]:
        """Answer a result in a rung; a trial that exited passes through the rungs it is promoted
        to.
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
        """Return the result that is now sure of the next rung, after this one came to the `before`
        others.
        """
        ranking = self._ranking(rung)
        index = ranking.insert(result)
        left_behind = self._plan.trials[rung] - self._plan.trials[rung + 1]
        certain = before + 1 - left_behind
        if certain <= 0:
            return None
        # One more is certain, and those before it went on already.
        return result if index < certain else ranking.result_at(certain - 1)

    def _close_full_rungs(self, state: SyncHalvingState) -> SyncHalvingState:
        """Begin to close the rungs that have all their results; none is full before the one below
        it.
        """
        expected = zip(state.results[: self._top_rung], self._plan.trials, strict=False)
        full = sum(results == trials for results, trials in expected)
        if full == state.closing:
            return state
        return evolve(state, closing=full, closing_from=0)


def _total_work(lengths: Sequence[int], trials: Sequence[int], validation: int = 0) -> int:
    """Count the units that all trials train from rung to rung, each time with `validation` more."""
    units = (length - before for before, length in pairwise((0, *lengths)))
    return sum((one + validation) * count for one, count in zip(units, trials, strict=True))
