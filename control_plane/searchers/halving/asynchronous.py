"""Asynchronous successive halving: plan, state, and the search methods in three forms: by
promotion, by stopping, and by stopping with a time metric.

Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2020), in the variant of
Determined 0.12 and 0.19. Each result causes one more unit of work, either a longer training or a
new trial, so that no slot waits until a rung is full.
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

TRAININGS_PER_TRIAL = 1.2
"""An estimate of the trainings per trial, for the progress before the first rung is full."""


@dataclass(frozen=True, slots=True)
class HalvingPlan:
    """The plan of an asynchronous halving, with rungs at max_length / divisor^k."""

    max_length: int
    num_rungs: int
    divisor: float
    """The reduction factor: one in `divisor` trials of a rung is promoted."""
    max_trials: int
    """The number of trials in total, without replacements of invalid trials."""
    max_concurrent_trials: int
    """The number of trials that the search creates at the start. 0: enough for one trial to reach
    the last rung.
    """
    smaller_is_better: bool
    rules: SearchRules
    stops: bool = False
    """Whether each trial is either continued or closed immediately after a result, instead of
    waiting for a promotion.
    """
    by_time: bool = False
    """Whether the lengths are values of a time metric. The trials then train without a length limit
    until the search stops them.
    """
    kind: Literal["async_halving"] = "async_halving"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the length of each rung, counted from a trial's start, in increasing order."""
        return rung_lengths(self.max_length, self.divisor, self.num_rungs)

    @property
    def first_trials(self) -> int:
        """Return the number of trials that the search creates at the start.

        `max_concurrent_trials` or, if that is 0, divisor^(num_rungs - 1); at most `max_trials`.
        """
        if self.max_concurrent_trials > 0:
            return min(self.max_concurrent_trials, self.max_trials)
        return max(int(min(power(self.divisor, self.num_rungs - 1), self.max_trials)), 1)

    @property
    def trial_count(self) -> int:
        """Return the number of trials in total, without replacements of invalid trials."""
        return self.max_trials

    def expected_stops(self) -> Counter[int]:
        """Return the expected number of trials that stop at each length.

        Assumes that one in `divisor` trials, but at least one, is promoted from each rung.
        Determined's preview follows the same rule.
        """
        *lower, top = self.lengths
        stopped = Counter[int]()
        remaining = self.max_trials
        for length in lower:
            promoted = max(int(remaining / self.divisor), 1)
            stopped[length] += remaining - promoted
            remaining = promoted
        stopped[top] += remaining
        return stopped


class ComparedTrials(Protocol):
    """The options of a searcher with asynchronous halving."""

    divisor: float
    max_trials: int
    max_concurrent_trials: int
    smaller_is_better: bool

    def lengths(self) -> dict[str, Length]:
        """Return the lengths among the options by name. A trial's longest training comes first."""
        ...


def plan_halving(options: ComparedTrials, num_rungs: int, rules: SearchRules) -> HalvingPlan:
    """Return the plan of an asynchronous halving with `num_rungs` rungs.

    The rungs are values of the time metric if `options` set `max_time`, otherwise lengths.
    """
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
    """The state of an asynchronous halving."""

    created: int
    """Trials that the method requested, invalid trials included."""
    results: tuple[int, ...]
    """The number of received results by rung."""
    outstanding: tuple[int, ...]
    """The number of trainings without a result yet, by rung."""
    ended: int = 0
    """Trials that ended, invalid trials included."""
    invalid: int = 0
    """Trials that refused the hyperparameters and were replaced."""
    closing: int = 0
    closing_from: int | None = None
    kind: Literal["async_halving"] = "async_halving"


class AsyncHalving(Bracket[HalvingPlan, HalvingState]):
    """The base class of the asynchronous halvings.

    After each result, either a trial trains further or a new trial is created.
    """

    @property
    def replaces_refused(self) -> bool:
        """Return whether a trial that refused the hyperparameters is replaced; see SearchMethod."""
        return self._plan.rules.replaces_invalid_hparams

    def first_step(self) -> MethodStep[HalvingState]:
        """Return the first state, and the creation of `plan.first_trials` trials with random
        hyperparameters.

        Each trial trains to the first rung. With a time metric, each trial trains without a limit.
        """
        count, rungs = self._plan.first_trials, self._plan.num_rungs
        state = HalvingState(0, results=(0,) * rungs, outstanding=(0,) * rungs)
        return self._create_trials(state, count)

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Return the next state and the operations after a result or the end of a trial."""
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
        """Return the completed share of the search; see SearchMethod.

        Until the first rung has `max_trials` results, the share is the number of results in the
        first rung, divided by `max_trials` times TRAININGS_PER_TRIAL. After that, the share is at
        least the number of ended trials divided by `max_trials`. Trials that refused their
        hyperparameters are not counted as ended.
        """
        trials = self._plan.max_trials
        share = state.results[0] / (TRAININGS_PER_TRIAL * trials)
        if state.results[0] < trials:
            return share
        return max(share, (state.ended - state.invalid) / trials)

    @abstractmethod
    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        """Return the next state and the operations after a trial's result in a rung."""

    def _answer_exit(
        self, state: HalvingState, event: TrialExitedEarly
    ) -> MethodStep[HalvingState]:
        """Return the next state and the operations after an early exit.

        - A trial that refused the hyperparameters is replaced, and all results of the trial are
          removed, if the rules of the era allow replacements.
        - Any other trial without a result in the current rung gets the worst result.
        - A trial with a result keeps the result, and no operations are returned.
        """
        rung, only_waited = self._mark_exited(event)
        if event.reason.is_invalid_hparams and self.replaces_refused:
            return self._replace_trial(state, event.trial, rung, only_waited)
        if only_waited:
            return MethodStep(self._close_finished_rungs(state))
        return self._answer_result(state, rung, Result(WORST_RESULT, event.trial))

    def _replace_trial(
        self, state: HalvingState, trial: int, rung: int, only_waited: bool
    ) -> MethodStep[HalvingState]:
        """Create a new trial in place of an invalid trial, and remove the invalid trial's results.

        Args:
            rung: the rung of the invalid trial.
            only_waited: whether the invalid trial had a result in that rung.
        """
        results, outstanding = list(state.results), list(state.outstanding)
        for below in range(rung + only_waited):
            # The last rung has no ranking, only a count.
            if below == self._top_rung or self._ranking(below).remove(trial):
                results[below] -= 1
        if not only_waited:
            outstanding[rung] -= 1
        state = evolve(
            state,
            results=tuple(results),
            outstanding=tuple(outstanding),
            invalid=state.invalid + 1,
            # The first rung is no longer full. Closing starts again when the rung is full.
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
        """Return the next state and the operations after a result was processed.

        The next state also lets `close_more` close the waiting trials of newly finished rungs.

        Args:
            operations: the operations so far; a create may be appended.
            trains: whether a trial continues training because of the result. If not, a new trial is
                created, up to `max_trials`.
        """
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
        """Return the state in which `close_more` will close the waiting trials of finished rungs.

        A rung is finished if neither the rung nor any lower rung has outstanding results. Return
        the state unchanged in these cases:

        - The first rung has fewer results than `max_trials`.
        - No further rung is finished.
        - The halving is by stopping.
        """
        if self._plan.stops or state.results[0] < self._plan.max_trials:
            return state
        finished = next((k for k, count in enumerate(state.outstanding) if count), self._top_rung)
        if finished <= state.closing:
            return state
        return evolve(state, closing=finished, closing_from=0)

    def _create_trials(self, state: HalvingState, count: int) -> MethodStep[HalvingState]:
        """Return the next state, and the creation of `count` trials for the first rung."""
        outstanding = (state.outstanding[0] + count, *state.outstanding[1:])
        state = evolve(state, created=state.created + count, outstanding=outstanding)
        return MethodStep(state, (self._make_create(count),))

    def _make_create(self, count: int) -> Create:
        length = ENDLESS if self._plan.by_time else self._lengths[0]
        return Create(count, "Sampled", first_point=0, length=length, closed=False)


class PromotingHalving(AsyncHalving):
    """Asynchronous halving by promotion.

    A trial waits in a rung until the trial is among the best 1/divisor of the results so far, and
    is then promoted. Each result promotes at most one trial per rung. If the next rung has the same
    length, or if the promoted trial has exited, the trial's result counts in the next rung at once.
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
        """Write a result to the ranking of a rung, and return the result that is promoted.

        The best 1/divisor of the results are promoted. The new result is returned if it is among
        the best. Otherwise an earlier result is returned, if the number of promotions grows and
        that trial is still in the rung. Otherwise return None.

        `before` is the number of earlier results in the rung.
        """
        ranking = self._ranking(rung)
        index = ranking.insert(result)
        divisor = self._plan.divisor
        old, new = int(before / divisor), int((before + 1) / divisor)
        if index < new:
            return result
        if new == old:
            return None
        # The number of promotions grew by one, and the new result is not among the best.
        candidate = ranking.result_at(old)
        status = self._statuses.status_of(candidate.trial)
        is_closed = status.closed and not status.exited
        return None if status.rung > rung or is_closed else candidate


class StoppingHalving(AsyncHalving):
    """Asynchronous halving by stopping.

    Each result decides immediately about the trial. The trial continues if the result is among the
    best 1/divisor of all results of the rung so far; otherwise the trial is closed. The first trial
    of a rung always continues.
    """

    def _answer_result(
        self, state: HalvingState, rung: int, result: Result
    ) -> MethodStep[HalvingState]:
        return self._pass_rungs(state, self._lengths[rung], result)

    def _pass_rungs(
        self, state: HalvingState, length: float, result: Result
    ) -> MethodStep[HalvingState]:
        """Compare a trial in every rung up to `length`, and return the next state and operations.

        The trial ends at the first rung where the result is not good enough. If the trial passes
        all these rungs, the trial continues to the next rung.
        """
        results, outstanding = list(state.results), list(state.outstanding)
        operations: list[Operation] = []
        trial, status = result.trial, self._statuses.status_of(result.trial)
        while length >= self._lengths[status.rung]:
            rung = status.rung
            outstanding[rung] -= 1
            results[rung] += 1
            is_best = self._is_best(rung, results[rung], result)
            if status.exited:
                # An exited trial neither ends nor continues. Only the result stays in the ranking.
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
        """Return a `Close` for a trial with a result that is not good enough. A subclass returns a
        `Stop`.
        """
        return Close(trial)

    def _continue_operations(self, trial: int, rung: int) -> Sequence[Operation]:
        """Return the operations that let a trial train to a rung."""
        return (TrainTo(trial, self._lengths[rung]),)

    def _is_best(self, rung: int, results: int, result: Result) -> bool:
        """Add a result to the ranking of a rung, and return whether the trial continues.

        `results` is the number of results in the rung, the new result included. In the last rung,
        return False and add nothing.
        """
        if rung == self._top_rung:
            return False
        index = self._ranking(rung).insert(result, before_equals=True)
        return index < max(int(results / self._plan.divisor), 1)


class TimedStoppingHalving(StoppingHalving):
    """Asynchronous halving by stopping, with a time metric in place of lengths.

    Every validation reports the value of the time metric. The trial is compared in every rung up to
    that value. Trials train until the search stops them.

    Source: Determined 0.38, whose only form of asynchronous halving this is.
    """

    def on_event(self, state: HalvingState, event: Event) -> MethodStep[HalvingState]:
        """Return the next state and the operations after a validation or the end of a trial."""
        if not isinstance(event, TrialValidationReported):
            return super().on_event(state, event)
        status = self._statuses.status_of(event.trial)
        if status.closed or event.time < self._lengths[status.rung]:
            return MethodStep(state)
        return self._pass_rungs(state, event.time, self._make_result(event.trial, event.metric))

    def _end_operation(self, trial: int) -> Operation:
        """Return a `Stop`, because the trial trains without a length limit."""
        return Stop(trial)

    def _continue_operations(self, trial: int, rung: int) -> Sequence[Operation]:
        """Return no operations, because the trial trains until the search stops the trial."""
        return ()
