"""Asynchronous successive halving: its plan, its state, early exits, and the end of a search.

Promotion and stopping, its two forms, are in promotion.py and stopping.py.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), as Determined
0.12 and 0.19 have it: each result yields one more unit of work, a longer training or a new trial,
so that no slot waits for a rung to fill.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from control_plane.evolve import evolve
from control_plane.field_types import Length
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.bracket import Bracket, ClosingState
from control_plane.searchers.halving.options import AsynchronousOptions
from control_plane.searchers.halving.ranking import Result
from control_plane.searchers.halving.rungs import WORST_RESULT, power, rung_lengths
from control_plane.searchers.method import (
    ENDLESS,
    Create,
    Event,
    MethodStep,
    Operation,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)

# Progress before the first rung is full: of so many trainings for each trial.
TRAININGS_PER_TRIAL = 1.2


@dataclass(frozen=True, slots=True)
class HalvingPlan:
    """Rungs at max_length / divisor^k for `max_trials` trials, of which `max_concurrent_trials` are
    open at the start (0: as many as lead to one in the last rung).

    `stops`: a trial goes on at once or is closed, instead of waiting to be promoted. `by_time`: the
    lengths are compared with a time metric of the trials', which train until they are stopped.
    """

    max_length: int
    num_rungs: int
    divisor: float
    max_trials: int
    max_concurrent_trials: int
    smaller_is_better: bool
    rules: SearchRules
    stops: bool = False
    by_time: bool = False
    kind: Literal["async_halving"] = "async_halving"

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of each rung, from a trial's start."""
        return rung_lengths(self.max_length, self.divisor, self.num_rungs)

    @property
    def first_trials(self) -> int:
        """How many trials are created at the start."""
        if self.max_concurrent_trials > 0:
            return min(self.max_concurrent_trials, self.max_trials)
        return max(int(min(power(self.divisor, self.num_rungs - 1), self.max_trials)), 1)

    @property
    def trial_count(self) -> int:
        """How many trials are created in the end."""
        return self.max_trials

    def expected_stops(self) -> Counter[int]:
        """Count the trials by the length at which they stop, if one in `divisor` goes on from each
        rung, and at least one: the rule of Determined's own preview.
        """
        *lower, top = self.lengths
        stopped = Counter[int]()
        left = self.max_trials
        for length in lower:
            going_on = max(int(left / self.divisor), 1)
            stopped[length] += left - going_on
            left = going_on
        stopped[top] += left
        return stopped


class ComparedTrials(Protocol):
    """The options of a searcher whose trials are compared as their results come in."""

    divisor: float
    max_trials: int
    max_concurrent_trials: int
    smaller_is_better: bool

    def lengths(self) -> dict[str, Length]:
        """Return every length by its option; a trial's longest training comes first."""
        ...


def plan_halving(options: ComparedTrials, num_rungs: int, rules: SearchRules) -> HalvingPlan:
    """Plan a halving with so many rungs, measured by lengths or by a time metric."""
    max_time = options.max_time if isinstance(options, AsynchronousOptions) else None
    longest = next(iter(options.lengths().values())).count if max_time is None else max_time
    return HalvingPlan(
        max_length=longest,
        num_rungs=num_rungs,
        divisor=options.divisor,
        max_trials=options.max_trials,
        max_concurrent_trials=options.max_concurrent_trials,
        smaller_is_better=options.smaller_is_better,
        rules=rules,
        stops=isinstance(options, AsynchronousOptions) and options.stop_once,
        by_time=max_time is not None,
    )


@dataclass(frozen=True)
class HalvingState(ClosingState):
    """Counts by rung: results that came in, and trainings whose results are outstanding.

    `created` and `ended` count invalid trials too.
    """

    created: int
    results: tuple[int, ...]
    outstanding: tuple[int, ...]
    ended: int = 0
    invalid: int = 0
    closing: int = 0
    closing_from: int | None = None
    kind: Literal["async_halving"] = "async_halving"


class AsyncHalving(Bracket[HalvingPlan, HalvingState]):
    """A bracket that keeps as many trials training as its results allow."""

    def first_step(self) -> MethodStep[HalvingState]:
        """Create the first trials."""
        count, rungs = self._plan.first_trials, self._plan.num_rungs
        state = HalvingState(0, results=(0,) * rungs, outstanding=(0,) * rungs)
        return self._create_trials(state, count)

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a result or an end."""
        match event:
            case TrialLengthReached():
                awaited = self._awaited_result(event)
                return (
                    MethodStep(state) if awaited is None else self._answer_result(state, *awaited)
                )
            case TrialClosed():
                return MethodStep(evolve(state, ended=state.ended + 1))
            case TrialExitedEarly():
                return self._answer_exit(evolve(state, ended=state.ended + 1), event)
            case _:
                return MethodStep(state)

    def progress(self, state: HalvingState, tally: Tally) -> float:
        """Compute the share of the first rung that is filled, and then of the trials that ended."""
        trials = self._plan.max_trials
        share = state.results[0] / (TRAININGS_PER_TRIAL * trials)
        if state.results[0] < trials:
            return share
        return max(share, (state.ended - state.invalid) / trials)

    @abstractmethod
    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        """Answer a result in a rung."""

    def _answer_exit(
        self, state: HalvingState, event: TrialExitedEarly
    ) -> MethodStep[HalvingState]:
        """Count the trial as the worst of its rung, unless its hyperparameters were refused."""
        rung, only_waited = self._mark_exited(event)
        if event.reason.is_invalid_hparams and self._plan.rules.replaces_invalid_hparams:
            return self._replace_trial(state, event.trial, rung, only_waited)
        if only_waited:
            return MethodStep(self._close_finished_rungs(state))
        return self._answer_result(state, rung, Result(WORST_RESULT, event.trial))

    def _replace_trial(
        self, state: HalvingState, trial: int, rung: int, only_waited: bool
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        for below in range(rung + only_waited):
            # The last rung compares nothing: it only counts.
            if below == self._top_rung or self._ranking(below).remove(trial):
                results[below] -= 1
        if not only_waited:
            outstanding[rung] -= 1
        state = evolve(
            state,
            results=tuple(results),
            outstanding=tuple(outstanding),
            invalid=state.invalid + 1,
            # The first rung is not full any more: closing begins anew when it is.
            closing=0,
            closing_from=None,
        )
        return self._create_trials(state, 1)

    def _finish_step(
        self,
        state: HalvingState,
        results: Sequence[int],
        outstanding: list[int],
        operations: list[Operation],
        *,
        trains: bool,
    ) -> MethodStep[HalvingState]:
        """Create a trial if no other trains on, and close rungs that are finished."""
        created = state.created
        if not trains and created - state.invalid < self._plan.max_trials:
            operations.append(self._make_create(1))
            outstanding[0] += 1
            created += 1
        state = evolve(
            state, created=created, results=tuple(results), outstanding=tuple(outstanding)
        )
        return MethodStep(self._close_finished_rungs(state), operations)

    def _close_finished_rungs(self, state: HalvingState) -> HalvingState:
        """Begin to close rungs, once the first one is full, that wait for no result, as none below
        does.
        """
        if self._plan.stops or state.results[0] < self._plan.max_trials:
            return state
        over = next((k for k, waits in enumerate(state.outstanding) if waits), self._top_rung)
        if over <= state.closing:
            return state
        return evolve(state, closing=over, closing_from=0)

    def _create_trials(self, state: HalvingState, count: int) -> MethodStep[HalvingState]:
        outstanding = (state.outstanding[0] + count, *state.outstanding[1:])
        state = evolve(state, created=state.created + count, outstanding=outstanding)
        return MethodStep(state, (self._make_create(count),))

    def _make_create(self, count: int) -> Create:
        length = ENDLESS if self._plan.by_time else self._lengths[0]
        return Create(count, "Sampled", first_point=0, length=length, closed=False)
