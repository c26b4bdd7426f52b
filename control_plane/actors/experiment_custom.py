"""What an experiment whose search method is the user's own can be told, and when."""

from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.step import Refused
from control_plane.searchers.custom import CustomState


def method_of(state: ExperimentState) -> CustomState:
    """What is kept for the search method; Refused where the search is none of a user."""
    method = state.search.method
    if isinstance(method, CustomState):
        return method
    what = "a test run" if state.searcher == "custom" else f"a search by {state.searcher}"
    raise Refused(
        "conflict",
        f"experiment {state.experiment_id} is {what}: no search method of yours drives it",
    )


def refused_when_over(state: ExperimentState) -> None:
    """Refused, conflict, for an experiment that is ending or has ended."""
    if state.status.stopping or state.status.final:
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: its search is over and takes no "
            "more operations",
        )
