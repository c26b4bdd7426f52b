"""The searcher `grid`: trains a trial for each grid point, all to an equal length."""

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
    """Grid search: one trial for each grid point."""


class LengthGrid(ConcurrentTrainingOptions):
    """Grid search: one trial for each grid point."""


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The plan of a grid search."""

    max_length: int
    """The length of each trial, or ENDLESS."""
    max_concurrent_trials: int
    """The limit of open trials; 0 means no limit. The step era ignores the limit."""
    rules: SearchRules
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, slots=True)
class GridState(MethodState):
    """The state of a grid search."""

    taken: int
    """The number of grid points for which the method requested a trial."""
    kind: Literal["grid"] = "grid"


class GridSearch(SearchMethod[GridState]):
    """The method of a grid search: each ended trial is followed by the next grid point.

    Trials that refused the hyperparameters are not replaced.
    """

    def __init__(self, plan: GridPlan, points: int) -> None:
        """Set the plan and the number of grid points."""
        self._plan = plan
        self._points = points

    @property
    def open_trials_max(self) -> int | None:
        """Return the limit of open trials: `max_concurrent_trials`.

        Return None for no limit: if the option is 0, and always in the step era.
        """
        is_limited = not self._plan.rules.creates_all_at_once
        return (self._plan.max_concurrent_trials or None) if is_limited else None

    def first_step(self) -> MethodStep[GridState]:
        """Return the first state, and the creation of the trials of the first points.

        Without a limit of open trials, these are all points.
        """
        plan = self._plan
        first = initial_trial_count(plan.rules, self._points, plan.max_concurrent_trials)
        return self._take_points(GridState(0), first)

    def on_event(self, state: GridState, event: Event) -> MethodStep[GridState]:
        """Return the creation of the next point's trial after any end of a trial."""
        match event:
            case TrialClosed() | TrialExitedEarly() if state.taken < self._points:
                return self._take_points(state, 1)
            case _:
                return MethodStep(state)

    def resume(self, state: GridState, tally: Tally) -> MethodStep[GridState]:
        """Return the creation of the next points' trials up to the limit of open trials.

        If reopened trials exceed the limit, no trial is created. See SearchMethod.
        """
        plan = self._plan
        room = vacant_trial_count(plan.rules, self._points, plan.max_concurrent_trials, tally)
        return self._take_points(state, max(0, min(room, self._points - state.taken)))

    def progress(self, state: GridState, tally: Tally) -> float:
        """Return the completed share of the full trainings of all points; see `completed_share`.

        An ended trial counts in full, a refused point not at all (length era).
        """
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
    can_continue=True,
)
