"""Checks for commands to a custom search, whose method is a process of the user."""

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.step import CommandRefused
from control_plane.searchers.methods.custom import CustomState
from control_plane.searchers.posted_operations import CreateRequest, PostedOperations


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


def check_batch_sizes(posted: PostedOperations, lengths: Lengths) -> None:
    """Raise CommandRefused, invalid, for a new trial whose lengths cannot be counted in batches, if
    they are.
    """
    if lengths.unit not in ("records", "epochs") or lengths.counts_epochs:
        return
    for index, operation in enumerate(posted.operations):
        if isinstance(operation, CreateRequest):
            size = operation.hparams.get("global_batch_size")
            if type(size) is not int or size < 1:
                raise CommandRefused(
                    "invalid",
                    f"operations[{index}].hparams: global_batch_size must be an integer of at "
                    f"least 1, to count {lengths.unit} in batches",
                )
