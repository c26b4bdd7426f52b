"""Checks for commands to a custom search. The search method is a process of the user."""

from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.lengths import Lengths
from control_plane.actors.step import CommandRefused
from control_plane.searchers.methods.custom import CustomState
from control_plane.searchers.posted_operations import CreateRequest, PostedOperations


def custom_state(state: ExperimentState) -> CustomState:
    """Return the state of a custom search.

    Raises:
        CommandRefused: conflict; the experiment has another search, or is a test run of a custom
            one.
    """
    method = state.search.method
    if isinstance(method, CustomState):
        return method
    kind = "a test run" if state.searcher == "custom" else f"a search by {state.searcher}"
    raise CommandRefused(
        "conflict",
        f"experiment {state.experiment_id} is {kind}: it is not driven by a search method of yours",
    )


def check_search_open(state: ExperimentState) -> None:
    """Check that the experiment is neither stopping nor ended.

    Raises:
        CommandRefused: conflict; the search is over.
    """
    if state.status.is_stopping or state.status.is_final:
        raise CommandRefused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: its search is over and accepts "
            "no more operations",
        )


def check_batch_sizes(posted: PostedOperations, lengths: Lengths) -> None:
    """Check that every new trial has a batch size, if lengths in records or epochs become batches.

    Nothing is checked for lengths in batches, or if trials count the epochs (`counts_epochs`).

    Raises:
        CommandRefused: invalid; `global_batch_size` of a trial is no positive integer.
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
