"""What asynchronous successive halvings share: plan, state, early exits, and the end of a search.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), as Determined
0.12 and 0.19 have it: each result yields one more unit of work, a longer training or a new trial,
so that no slot waits for a rung to fill.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from control_plane.evolve import evolve
from control_plane.searchers.bracket import Bracket, ClosingState
from control_plane.searchers.method import (
    ENDLESS,
    Create,
    Event,
    MethodStep,
    Operation,
    Tally,
    TrialClosed,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.ranking import Result
from control_plane.searchers.rules import Rules
from control_plane.searchers.rungs import WORST, power, rung_lengths

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
    rules: Rules
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


@dataclass(frozen=True)
class HalvingState(ClosingState):
    """Counts by rung: results that came in, and trainings that were asked for and did not yet.

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


class Halving(Bracket[HalvingPlan, HalvingState]):
    """A bracket that keeps as many trials training as its results allow."""

    def initial(self) -> MethodStep[HalvingState]:
        """Create the first trials."""
        count, rungs = self._plan.first_trials, self._plan.num_rungs
        state = HalvingState(0, results=(0,) * rungs, outstanding=(0,) * rungs)
        return self._with_created(state, count)

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a result or an end."""
        match event:
            case TrialReached():
                awaited = self._awaited(event)
                return MethodStep(state) if awaited is None else self._carried_on(state, *awaited)
            case TrialClosed():
                return MethodStep(evolve(state, ended=state.ended + 1))
            case TrialExited():
                return self._exited(evolve(state, ended=state.ended + 1), event)
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
    def _carried_on(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        """Answer a result in a rung."""

    def _exited(self, state: HalvingState, event: TrialExited) -> MethodStep[HalvingState]:
        """It counts as the worst result of its rung, unless its hyperparameters were refused."""
        rung, only_waited = self._left(event)
        if event.reason.invalid_hparams and self._plan.rules.replaces_invalid_hparams:
            return self._replaced(state, event.trial, rung, only_waited)
        if only_waited:
            return MethodStep(self._closing(state))
        return self._carried_on(state, rung, Result(WORST, event.trial))

    def _replaced(
        self, state: HalvingState, trial: int, rung: int, only_waited: bool
    ) -> MethodStep[HalvingState]:
        results, outstanding = list(state.results), list(state.outstanding)
        for below in range(rung + only_waited):
            # The last rung compares nothing: it only counts.
            if below == self._top or self._ranking(below).remove(trial):
                results[below] -= 1
        if not only_waited:
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
        self,
        state: HalvingState,
        results: Sequence[int],
        outstanding: list[int],
        operations: list[Operation],
        *,
        trains: bool,
    ) -> MethodStep[HalvingState]:
        """What every result ends with: a new trial where nobody trains on, and the closing."""
        created = state.created
        if not trains and created - state.invalid < self._plan.max_trials:
            operations.append(self._create(1))
            outstanding[0] += 1
            created += 1
        state = evolve(
            state, created=created, results=tuple(results), outstanding=tuple(outstanding)
        )
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
        outstanding = (state.outstanding[0] + count, *state.outstanding[1:])
        state = evolve(state, created=state.created + count, outstanding=outstanding)
        return MethodStep(state, (self._create(count),))

    def _create(self, count: int) -> Create:
        length = ENDLESS if self._plan.by_time else self._lengths[0]
        return Create(count, "Sampled", first_point=0, length=length, closed=False)
