"""The base classes of all halvings: rung lookup, rankings, and the closing of waiting trials."""

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
    """The plan of a halving."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the length of each rung, in increasing order."""
        ...

    @property
    def smaller_is_better(self) -> bool:
        """Return whether a smaller metric is better."""
        ...


class ClosingState(MethodState):
    """The state of a bracket that closes trials in several steps."""

    closing: int
    """The number of rungs, from the first, whose trials are closed unless promoted."""
    closing_from: int | None
    """The number of the first trial that is not examined yet. None: all trials are examined."""

    @property
    def is_closing(self) -> bool:
        """Return whether `close_more` has trials left to examine; see MethodState."""
        return self.closing_from is not None


Plan = TypeVar("Plan", bound=RungPlan)
State = TypeVar("State", bound=ClosingState)


class Bracket(SearchMethod[State], Generic[Plan, State]):
    """The base class of the search methods that compare trials at rungs."""

    def __init__(
        self, plan: Plan, blobs: BlobStore, statuses: TrialStatuses, number: int = 0
    ) -> None:
        """Set the plan and the stores.

        Args:
            blobs: the blobs of this bracket, which contain the rankings.
            statuses: the statuses of the trials of all brackets.
            number: the number of this bracket within the search.
        """
        self._plan = plan
        self._blobs = blobs
        self._statuses = statuses
        self._number = number
        self._rankings: dict[int, Ranking] = {}

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        # Computed on demand: an event concerns only one of many brackets.
        return self._plan.lengths

    @property
    def _top_rung(self) -> int:
        return len(self._lengths) - 1

    def close_more(self, state: State, trials: int, close_max: int) -> MethodStep[State]:
        """Return closes of trials that wait in finished rungs; see SearchMethod."""
        assert state.closing_from is not None
        closed, following = self._statuses.close_left_behind(
            self._number, state.closing, range(state.closing_from, trials), close_max
        )
        return MethodStep(evolve(state, closing_from=following), tuple(map(Close, closed)))

    def _ranking(self, rung: int) -> Ranking:
        """Return the ranking of a rung. Each call for the same rung returns the same object."""
        if rung not in self._rankings:
            self._rankings[rung] = Ranking(self._blobs, f"rung{rung}")
        return self._rankings[rung]

    def _awaited_result(self, event: TrialLengthReached) -> tuple[int, Result] | None:
        """Return the trial's rung, and the result of a reported length in that rung.

        Return None if the trial is closed, has a result already, or reached another length.
        """
        status = self._statuses.status_of(event.trial)
        has_result = status.closed or status.reported
        if has_result or self._lengths[status.rung] != event.length:
            return None
        return status.rung, self._make_result(event.trial, event.metric)

    def _make_result(self, trial: int, metric: float) -> Result:
        """Return the result of a trial with this metric, signed so that smaller is better."""
        return Result(signed_metric(metric, self._plan.smaller_is_better), trial)

    def _mark_reported(self, trial: int, *, closed: bool) -> bool:
        """Record that a trial has a result and is not promoted now.

        Args:
            closed: whether the trial is also recorded as closed.

        Returns:
            False, without a change, if the trial exited early; True otherwise.
        """
        status = self._statuses.status_of(trial)
        if not status.exited:
            self._statuses.set_status(trial, TrialStatus(status.rung, closed=closed, reported=True))
        return not status.exited

    def _move_to_rung(self, trial: int, rung: int) -> TrialStatus:
        """Record that a trial is in a rung without a result, and return the new status."""
        before = self._statuses.status_of(trial)
        status = TrialStatus(rung, before.exited, before.closed)
        self._statuses.set_status(trial, status)
        return status

    def _mark_exited(self, event: TrialExitedEarly) -> tuple[int, bool]:
        """Record an early exit.

        Return the trial's rung, and whether the trial had a result in that rung or was closed.
        """
        status = self._statuses.status_of(event.trial)
        self._statuses.set_status(event.trial, status._replace(exited=True, closed=True))
        only_waited = status.closed or event.length == self._lengths[status.rung]
        return status.rung, only_waited
