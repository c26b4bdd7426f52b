"""Checks for commands to a custom search, whose method is a process of the user."""

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.step import CommandRefused
from control_plane.searchers.methods.custom import CustomState


def custom_state(state: ExperimentState) -> CustomState:
    """The state of a custom search; CommandRefused, conflict, for any other search."""
    method = state.search.method
    if isinstance(method, CustomState):
        return method
    what = "a test run" if state.searcher == "custom" else f"a search by {state.searcher}"
    raise CommandRefused(
        "conflict",
        f"experiment {state.experiment_id} is {what}: it is not driven by a search method of yours",
    )


def check_search_open(state: ExperimentState) -> None:
    """Raise CommandRefused, conflict, for an experiment that is ending or has ended."""
    if state.status.is_stopping or state.status.is_final:
        raise CommandRefused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: its search is over and takes no "
            "more operations",
        )
