"""Grid search: one trial per point of the grid, each trained to the same length."""

from dataclasses import dataclass
from typing import Literal

from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.full_trainings import (
    ConcurrentTrainingOptions,
    StepTrainingOptions,
    completed_share,
    initial_trial_count,
    length_count,
    vacant_trial_count,
)
from control_plane.searchers.method import (
    Create,
    Event,
    MethodState,
    MethodStep,
    SearchMethod,
    Tally,
    TrialClosed,
    TrialExitedEarly,
)
from control_plane.searchers.space import grid_size
from control_plane.searchers.spec import PreviewPart, SearcherSpec


class StepGrid(StepTrainingOptions):
    """One trial for every point of the grid."""


class LengthGrid(ConcurrentTrainingOptions):
    """One trial for every point of the grid, a number of them at a time."""


@dataclass(frozen=True, slots=True)
class GridPlan:
    """Train every grid point to `max_length`; at most `max_concurrent_trials` open (0: all)."""

    max_length: int
    max_concurrent_trials: int
    rules: SearchRules
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, slots=True)
class GridState(MethodState):
    """Progress of the search. `taken`: how many points have a trial."""

    taken: int
    kind: Literal["grid"] = "grid"


class GridSearch(SearchMethod[GridState]):
    """Keeps trials open up to the limit until every point has one; none is replaced."""

    def __init__(self, plan: GridPlan, points: int) -> None:
        """Bind the plan to a grid of `points` points."""
        self._plan = plan
        self._points = points

    def first_step(self) -> MethodStep[GridState]:
        """Take the first points, all of them where nothing limits how many may be open."""
        plan = self._plan
        first = initial_trial_count(plan.rules, self._points, plan.max_concurrent_trials)
        return self._take_points(GridState(0), first)

    def on_event(self, state: GridState, event: Event) -> MethodStep[GridState]:
        """Take the next point when a trial ended, however it did."""
        match event:
            case TrialClosed() | TrialExitedEarly() if state.taken < self._points:
                return self._take_points(state, 1)
            case _:
                return MethodStep(state)

    def resume(self, state: GridState, tally: Tally) -> MethodStep[GridState]:
        """Fill up to the limit of open trials; trials opened again may go beyond it."""
        plan = self._plan
        room = vacant_trial_count(plan.rules, self._points, plan.max_concurrent_trials, tally)
        return self._take_points(state, max(0, min(room, self._points - state.taken)))

    def progress(self, state: GridState, tally: Tally) -> float:
        """Compute the share of all points' trainings that is done."""
        return completed_share(self._plan.rules, self._points, self._plan.max_length, tally)

    def _take_points(self, state: GridState, count: int) -> MethodStep[GridState]:
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


def _make_plan(options: StepGrid | LengthGrid, rules: SearchRules) -> GridPlan:
    match options:
        case StepGrid(max_steps=length):
            return GridPlan(length_count(length), 0, rules)
        case LengthGrid(max_length=length, max_concurrent_trials=concurrent):
            return GridPlan(length_count(length), concurrent, rules)


SPEC = SearcherSpec[StepGrid | LengthGrid, GridPlan](
    name="grid",
    listing_order=2,
    step_options=StepGrid,
    length_options=LengthGrid,
    plan_type=GridPlan,
    state_type=GridState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: GridSearch(plan, grid_size(space)),
    trial_count=lambda options, plan, space: grid_size(space),
    preview=lambda plan: [PreviewPart(plan)],
    space_use="grid",
    trains_to_end=True,
)
