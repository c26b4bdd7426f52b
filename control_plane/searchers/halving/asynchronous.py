"""Asynchronous successive halving: its plan, its state, what its forms share, and the forms: by
promotion, by stopping, and by stopping as a time metric says.

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
    Close,
    Create,
    Event,
    MethodStep,
    Operation,
    Stop,
    Tally,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialValidationReported,
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

    @property
    def replaces_refused(self) -> bool:
        """Whether the rules of its era say so."""
        return self._plan.rules.replaces_invalid_hparams

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
        if event.reason.is_invalid_hparams and self.replaces_refused:
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
            # The first rung is not full any more: closing begins again when it is.
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


class PromotingHalving(AsyncHalving):
    """Asynchronous halving by promotion: a trial goes on once it is among the best 1/divisor of its
    rung as far as that is known, and waits until then.

    At most one trial is promoted for each result; one that would train nothing more passes on.
    """

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


class StoppingHalving(AsyncHalving):
    """Asynchronous halving by stopping: a trial is closed at the first rung where it is not among
    the best 1/divisor of those that came before it, and goes on at once where it is.

    A trial is decided about once, when its result comes in; the first of a rung always goes on.
    """

    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        return self._pass_rungs(state, self._lengths[rung], result)

    def _pass_rungs(
        self, state: HalvingState, length: float, result: Result
    ) -> MethodStep[HalvingState]:
        """Advance a trial past every rung that it has reached, or end it at one of them."""
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


class TimedStoppingHalving(StoppingHalving):
    """Asynchronous halving by stopping, measured by a time metric: every validation reports how
    long the trial has trained, and trials train until they are stopped.

    A trial is compared at every rung whose time it has reached.

    Source: Determined 0.38, which has this form alone.
    """

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Answer a report or an end."""
        if not isinstance(event, TrialValidationReported):
            return super().on_event(state, event)
        status = self._statuses.status_of(event.trial)
        if status.closed or event.time < self._lengths[status.rung]:
            return MethodStep(state)
        return self._pass_rungs(state, event.time, self._make_result(event.trial, event.metric))

    def _end_operation(self, trial: int) -> Operation:
        return Stop(trial)

    def _continue_operations(self, trial: int, rung: int) -> Sequence[Operation]:
        """Return nothing: the trial trains on anyway."""
        return ()
