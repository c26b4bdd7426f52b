"""Grid search: one trial per point of the grid, each trained to the same length."""

from dataclasses import dataclass
from typing import Literal

from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Tally,
    TrialClosed,
    TrialExited,
)
from control_plane.searchers.rules import Rules, first_batch, share_done


@dataclass(frozen=True, slots=True)
class GridPlan:
    """Train every grid point to `max_length`; at most `max_concurrent_trials` open (0: all)."""

    max_length: int
    max_concurrent_trials: int
    rules: Rules
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, slots=True)
class GridState(MethodState):
    """`taken`: how many points have a trial."""

    taken: int
    kind: Literal["grid"] = "grid"


class GridSearch(SearchMethod[GridState]):
    """Keeps trials open up to the limit until every point was taken; none is replaced."""

    def __init__(self, plan: GridPlan, points: int) -> None:
        """Bind the plan to a grid of `points` points."""
        self._plan = plan
        self._points = points

    def initial(self) -> MethodStep[GridState]:
        """Take the first points, all of them where nothing limits how many may be open."""
        plan = self._plan
        first = first_batch(plan.rules, self._points, plan.max_concurrent_trials)
        return self._taken(GridState(0), first)

    def on_event(self, state: GridState, event: Event) -> MethodStep[GridState]:
        """Take the next point when a trial ended, however it did."""
        match event:
            case TrialClosed() | TrialExited() if state.taken < self._points:
                return self._taken(state, 1)
            case _:
                return MethodStep(state)

    def resumed(self, state: GridState, tally: Tally) -> MethodStep[GridState]:
        """Fill up to the limit of open trials; trials opened again may go beyond it."""
        plan = self._plan
        limit = first_batch(plan.rules, self._points, plan.max_concurrent_trials)
        room = limit - (tally.requested - tally.closed)
        return self._taken(state, max(0, min(room, self._points - state.taken)))

    def progress(self, state: GridState, tally: Tally) -> float:
        """Compute the share of all points' trainings that is done."""
        return share_done(self._plan.rules, self._points, self._plan.max_length, tally)

    def _taken(self, state: GridState, count: int) -> MethodStep[GridState]:
        backwards = self._plan.rules.grid_from_end
        create = Create(
            count,
            "FromGrid",
            first_point=self._points - 1 - state.taken if backwards else state.taken,
            length=self._plan.max_length,
            closed=True,
            point_step=-1 if backwards else 1,
        )
        return MethodStep(GridState(state.taken + count), (create,))
