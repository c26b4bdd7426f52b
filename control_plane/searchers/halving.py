"""What asynchronous successive halvings share: plan, state, early exits, and the end of a search.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), as Determined
0.12 and 0.19 have it: each result yields one more unit of work, a longer training or a new trial,
so that no slot waits for a rung to fill.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from control_plane.evolve import evolve
from control_plane.searchers.method import (
    Close,
    Create,
    Event,
    MethodStep,
    Operation,
    Tally,
    TrialClosed,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.parts import Parts
from control_plane.searchers.ranking import Ranking
from control_plane.searchers.roster import Roster
from control_plane.searchers.rules import Rules
from control_plane.searchers.rungs import WORST, power, rung_lengths

# Progress before the first rung is full: of so many trainings for each trial.
TRAININGS_PER_TRIAL = 1.2


@dataclass(frozen=True, slots=True)
class HalvingPlan:
    """Rungs at max_length / divisor^k for `max_trials` trials, of which `max_concurrent_trials` are
    open at the start (0: as many as lead to one in the last rung).

    `stops`: a trial goes on at once or is closed, instead of waiting to be promoted.
    """

    max_length: int
    num_rungs: int
    divisor: float
    max_trials: int
    max_concurrent_trials: int
    smaller_is_better: bool
    rules: Rules
    stops: bool = False
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


@dataclass(frozen=True)
class HalvingState:
    """Counts by rung: results that came in, and trainings that were asked for and did not yet.

    `created` and `ended` count invalid trials too. `closing`: rungs from the bottom whose trials
    are being closed where they did not go on; those before trial `closing_from` were looked at,
    None: all.
    """

    created: int
    results: tuple[int, ...]
    outstanding: tuple[int, ...]
    ended: int = 0
    invalid: int = 0
    closing: int = 0
    closing_from: int | None = None
    kind: Literal["async_halving"] = "async_halving"


class Halving(ABC):
    """The rungs of one plan. `bracket` is its number where several run side by side."""

    def __init__(self, plan: HalvingPlan, parts: Parts, roster: Roster, bracket: int = 0) -> None:
        self._plan = plan
        self._parts = parts
        self._roster = roster
        self._bracket = bracket
        self._top = plan.num_rungs - 1

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        # Of many brackets only one is asked for it.
        return self._plan.lengths

    def initial(self) -> MethodStep[HalvingState]:
        """Create the first trials."""
        count, rungs = self._plan.first_trials, self._plan.num_rungs
        state = HalvingState(0, results=(0,) * rungs, outstanding=(0,) * rungs)
        return self._with_created(state, count)

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a result or an end."""
        match event:
            case TrialReached(trial, length, metric):
                standing = self._roster.standing(trial)
                if standing.closed or self._lengths[standing.rung] != length:
                    return MethodStep(state)
                signed = metric if self._plan.smaller_is_better else -metric
                return self._carried_on(state, trial, standing.rung, signed)
            case TrialClosed():
                return MethodStep(evolve(state, ended=state.ended + 1))
            case TrialExited():
                return self._exited(evolve(state, ended=state.ended + 1), event)
            case _:
                return MethodStep(state)

    def is_closing(self, state: HalvingState) -> bool:
        """Whether `close_more` has more to do."""
        return state.closing_from is not None

    def close_more(
        self, state: HalvingState, trials: int, close_max: int
    ) -> MethodStep[HalvingState]:
        """Close at most `close_max` trials, of `trials` in the search, that will not go on."""
        assert state.closing_from is not None
        closed, following = self._roster.close_left(
            self._bracket, state.closing, range(state.closing_from, trials), close_max
        )
        return MethodStep(evolve(state, closing_from=following), tuple(map(Close, closed)))

    def progress(self, state: HalvingState, tally: Tally) -> float:
        """Compute the share of the first rung that is filled, and then of the trials that ended."""
        trials = self._plan.max_trials
        share = state.results[0] / (TRAININGS_PER_TRIAL * trials)
        if state.results[0] < trials:
            return share
        return max(share, (state.ended - state.invalid) / trials)

    def resumed(self, state: HalvingState, tally: Tally) -> MethodStep[HalvingState]:
        """Nothing: such a search does not go on once it has ended."""
        return MethodStep(state)

    @abstractmethod
    def _carried_on(
        self, state: HalvingState, trial: int, rung: int, metric: float
    ) -> MethodStep[HalvingState]:
        """Answer a result in a rung; `metric` is signed so that less is better."""

    def _ranking(self, rung: int) -> Ranking:
        return Ranking(self._parts, f"rung{rung}")

    def _exited(self, state: HalvingState, event: TrialExited) -> MethodStep[HalvingState]:
        """It counts as the worst result of its rung, unless its hyperparameters were refused."""
        trial, standing = event.trial, self._roster.standing(event.trial)
        self._roster.stand(trial, standing._replace(exited=True, closed=True))
        rung = standing.rung
        if event.reason.invalid_hparams and self._plan.rules.replaces_invalid_hparams:
            return self._replaced(state, event, rung)
        if event.length == self._lengths[rung]:
            # It has its result: it only waited.
            return MethodStep(self._closing(state))
        return self._carried_on(state, trial, rung, WORST)

    def _replaced(
        self, state: HalvingState, event: TrialExited, rung: int
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        for below in range(rung + 1):
            has_result = below < rung or event.length == self._lengths[rung]
            # The last rung compares nothing: it only counts.
            if has_result and (below == self._top or self._ranking(below).remove(event.trial)):
                results[below] -= 1
        if event.length != self._lengths[rung]:
            outstanding[rung] -= 1
        state = evolve(
            state,
            results=tuple(results),
            outstanding=tuple(outstanding),
            invalid=state.invalid + 1,
            # The first rung is not full any more: what had begun begins anew when it is.
            closing=0,
            closing_from=None,
        )
        return self._with_created(state, 1)

    def _finished(
        self, state: HalvingState, operations: Sequence[Operation], *, trains: bool
    ) -> MethodStep[HalvingState]:
        """What every result ends with: a new trial where nobody trains on, and the closing."""
        counted = state.created - state.invalid
        if not trains and counted < self._plan.max_trials:
            step = self._with_created(state, 1)
            state, operations = step.state, (*operations, *step.operations)
        return MethodStep(self._closing(state), operations)

    def _closing(self, state: HalvingState) -> HalvingState:
        """Once the first rung is full, a rung that waits for nothing, nor any below it, is over."""
        if self._plan.stops or state.results[0] < self._plan.max_trials:
            return state
        over = next((k for k, waits in enumerate(state.outstanding) if waits), self._top)
        if over <= state.closing:
            return state
        return evolve(state, closing=over, closing_from=0)

    def _with_created(self, state: HalvingState, count: int) -> MethodStep[HalvingState]:
        create = Create(count, "Sampled", first_point=0, length=self._lengths[0], closed=False)
        outstanding = (state.outstanding[0] + count, *state.outstanding[1:])
        return MethodStep(
            evolve(state, created=state.created + count, outstanding=outstanding), (create,)
        )
