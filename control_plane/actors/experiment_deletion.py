"""What is asked of the collector, and how an experiment goes for good.

A row in `collections` asks for the checkpoints to be collected; it is written with the change
that makes it necessary and counted by `generation`, so that a late word about an earlier one
changes nothing. An experiment that is deleted asks for everything to go, then removes its own
parts a few at a time, and leaves a head that says that it was there.
"""

import json

from control_plane.actors.experiment_bill import Bill
from control_plane.actors.experiment_messages import CollectionEnded, DeletionContinued
from control_plane.actors.experiment_state import (
    LISTING,
    ExperimentState,
    definition_of,
    listed,
    listing_sort,
    settings_of,
)
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_checkpoints import COLLECTIONS, unpinned
from control_plane.evolve import evolve

# Parts removed in one commit, which holds 100 operations with whatever mail it folds.
REMOVED_MAX = 32


def collected(state: ExperimentState, turn: Turn, *, delete: bool = False) -> ExperimentState:
    """Asks for the experiment's checkpoints to be collected as its settings say, or for all it
    made to be deleted.
    """
    retention = settings_of(turn).retention
    kept = [
        retention.save_experiment_best,
        retention.save_trial_best,
        retention.save_trial_latest,
    ]
    generation = state.generation + 1
    asked = {"generation": generation, "retention": kept, "delete": delete}
    turn.write_row(COLLECTIONS, listing_sort(state.experiment_id), json.dumps(asked).encode())
    return evolve(state, generation=generation)


def deleted(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Begins to delete an ended experiment, again where it failed; Refused for any other."""
    turn.reply = state.experiment_id
    if state.status is Status.DELETING:
        return state
    if not state.status.final:
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: only one that has ended can be"
            " deleted; cancel or kill it first",
        )
    turn.because(f"{state.status} to {Status.DELETING}")
    state = evolve(state, status=Status.DELETING, message="")
    return listed(collected(state, turn, delete=True), turn)


def collection_ended(
    state: ExperimentState, message: CollectionEnded, turn: Turn
) -> ExperimentState:
    """Takes the row away that asked for it, unless something else was asked for meanwhile."""
    if message.generation != state.generation:
        return state
    turn.write_row(COLLECTIONS, listing_sort(state.experiment_id), None)
    if message.failure:
        turn.because(f"the collection failed: {message.failure}")
    if state.status is not Status.DELETING:
        return state
    if message.failure:
        failed = evolve(state, status=Status.DELETE_FAILED, message=message.failure)
        return listed(failed, turn)
    return removed(state, turn)


def removed(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Removes the experiment's own parts, the last trials' first, and at last its row."""
    if state.status is not Status.DELETING:
        return state
    parts = -(-state.trials // SUMMARIES_PER_PART)
    first = max(0, parts - REMOVED_MAX)
    for index in range(first, parts):
        turn.write_part(f"trials/{index}", None)
        if state.bill != Bill():
            turn.write_part(f"meters/{index}", None)
    state = evolve(state, trials=min(state.trials, first * SUMMARIES_PER_PART))
    if first:
        turn.send(turn.address, DeletionContinued())
        return state
    warm_start = definition_of(turn).warm_start
    if warm_start is not None:
        unpinned(warm_start.uuid, state.experiment_id, turn)
    for name in ("definition", "settings", "generator"):
        turn.write_part(name, None)
    turn.write_row(LISTING, listing_sort(state.experiment_id), None)
    turn.because("deleted")
    return evolve(state, status=Status.DELETED, name="", message="")
