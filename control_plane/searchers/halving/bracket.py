"""The base of all halvings: finds the rungs of trials and closes those left behind."""

from functools import cached_property
from typing import Generic, Protocol, TypeVar

from control_plane.evolve import evolve
from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.halving.ranking import Ranking, Result
from control_plane.searchers.halving.rungs import signed_metric
from control_plane.searchers.halving.trial_statuses import TrialStatus, TrialStatuses
from control_plane.searchers.method import (
    Close,
    MethodState,
    MethodStep,
    SearchMethod,
    TrialExitedEarly,
    TrialLengthReached,
)


class RungPlan(Protocol):
    """A plan with the length of each rung, and whether a smaller metric is better."""

    @property
    def lengths(self) -> tuple[int, ...]: ...

    @property
    def smaller_is_better(self) -> bool: ...


class ClosingState(MethodState):
    """The state of a bracket that closes trials bit by bit. `closing`: rungs from the bottom whose
    trials are being closed where they did not go on; those before trial `closing_from` were
    examined, None: all.
    """

    closing: int
    closing_from: int | None

    @property
    def is_closing(self) -> bool:
        """Whether trials are left to examine; see MethodState."""
        return self.closing_from is not None


Plan = TypeVar("Plan", bound=RungPlan)
State = TypeVar("State", bound=ClosingState)


class Bracket(SearchMethod[State], Generic[Plan, State]):
    """A halving by one plan. `number` tells it from others where several run side by side."""

    def __init__(
        self, plan: Plan, blobs: BlobStore, statuses: TrialStatuses, number: int = 0
    ) -> None:
        self._plan = plan
        self._blobs = blobs
        self._statuses = statuses
        self._number = number
        self._rankings: dict[int, Ranking] = {}

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        # Computed when it is needed: of many brackets an event concerns one.
        return self._plan.lengths

    @property
    def _top_rung(self) -> int:
        return len(self._lengths) - 1

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """Close the next trials that were left behind; see SearchMethod."""
        assert state.closing_from is not None
        closed, following = self._statuses.close_left_behind(
            self._number, state.closing, range(state.closing_from, trials), close_max
        )
        return MethodStep(evolve(state, closing_from=following), tuple(map(Close, closed)))

    def _ranking(self, rung: int) -> Ranking:
        if rung not in self._rankings:
            self._rankings[rung] = Ranking(self._blobs, f"rung{rung}")
        return self._rankings[rung]

    def _awaited_result(self, event: TrialLengthReached) -> tuple[int, Result] | None:
        """Return the rung that a report is for and its result there, signed so that less is better;
        None for a report that the rung does not wait for.
        """
        status = self._statuses.status_of(event.trial)
        is_over = status.closed or status.reported
        if is_over or self._lengths[status.rung] != event.length:
            return None
        return status.rung, self._make_result(event.trial, event.metric)

    def _make_result(self, trial: int, metric: float) -> Result:
        return Result(signed_metric(metric, self._plan.smaller_is_better), trial)

    def _mark_reported(self, trial: int, *, closed: bool) -> bool:
        """Record a trial's result that does not lead to a promotion yet or, `closed`, never will.

        Returns whether the trial can still be closed.
        """
        status = self._statuses.status_of(trial)
        if not status.exited:
            self._statuses.set_status(trial, TrialStatus(status.rung, closed=closed, reported=True))
        return not status.exited

    def _move_to_rung(self, trial: int, rung: int) -> TrialStatus:
        """Move a trial to a rung, and return its status there."""
        before = self._statuses.status_of(trial)
        status = TrialStatus(rung, before.exited, before.closed)
        self._statuses.set_status(trial, status)
        return status

    def _mark_exited(self, event: TrialExitedEarly) -> tuple[int, bool]:
        """Record an early exit. Return the trial's rung, and whether its result was there already,
        so that it only waited.
        """
        status = self._statuses.status_of(event.trial)
        self._statuses.set_status(event.trial, status._replace(exited=True, closed=True))
        only_waited = status.closed or event.length == self._lengths[status.rung]
        return status.rung, only_waited
