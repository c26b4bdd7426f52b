"""The deletion of an experiment.

First the collector deletes the experiment's checkpoints and trials (collection.py). Then the
experiment removes its own parts, some in each commit. Only a head with the status DELETED remains.
"""

from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.actors.experiment.bill import Bill
from control_plane.actors.experiment.collection import request_collection
from control_plane.actors.experiment.expiry import finish_expiry, plan_expiry
from control_plane.actors.experiment.listing import write_listing_row
from control_plane.actors.experiment.metadata_rows import write_metadata_rows
from control_plane.actors.experiment.state import (
    LISTING,
    ExperimentState,
    definition_of,
    forks_partition,
    listing_sort_key,
    settings_of,
)
from control_plane.actors.experiment.trial_summaries import SUMMARIES_PER_PART
from control_plane.actors.experiment.values import VALUES
from control_plane.actors.messages.experiment import CollectionEnded, DeletionContinued
from control_plane.actors.pins import remove_pin
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve

# The most trial parts that a commit removes. A commit has 100 operations, messages included.
REMOVED_MAX = 32


def begin_deletion(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Begin to delete an ended experiment, also after a failed deletion. The reply is the
    experiment's id.

    The status becomes DELETING, the listing row is updated, and a row in `collections` requests the
    deletion of all files and trials. A deletion that has begun already changes nothing.

    Raises:
        CommandRefused: conflict; the experiment has not ended.
    """
    context.reply = state.experiment_id
    if state.status is Status.DELETING:
        return state
    if not state.status.is_final:
        raise CommandRefused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status}: only an experiment that has "
            "ended can be deleted; cancel or kill it first",
        )
    context.add_reason(f"{state.status} to {Status.DELETING}")
    state = plan_expiry(evolve(state, status=Status.DELETING, message=""), context)
    return write_listing_row(request_collection(state, context, delete=True), context)


def finish_collection(
    state: ExperimentState, message: CollectionEnded, context: StepContext
) -> ExperimentState:
    """Remove the row of the request that the collector has processed, and continue a deletion.

    An answer to an earlier request changes nothing. A deletion goes on with `remove_parts`. If the
    collector failed, the deletion ends with the status DELETE_FAILED, and the listing row is
    updated. Other experiments note the failure in the journal, or finish the deletion of expired
    data (`finish_expiry`).
    """
    if message.collection_number != state.collection_number:
        return state
    context.write_row(COLLECTIONS, listing_sort_key(state.experiment_id), None)
    if message.failure:
        context.add_reason(f"the collection failed: {message.failure}")
    if state.status is not Status.DELETING:
        return finish_expiry(state, message, context)
    if message.failure:
        failed = evolve(state, status=Status.DELETE_FAILED, message=message.failure)
        return write_listing_row(failed, context)
    return remove_parts(state, context)


def remove_parts(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Remove the experiment's parts, last trials first, up to REMOVED_MAX parts of trials in a
    commit.

    A part is a stored row of the experiment's state. If parts remain, send the experiment a
    DeletionContinued. The last commit also removes the listing row, the values row, the fork row,
    the metadata rows and the pin of the warm start, and the status becomes DELETED. Nothing happens
    unless the status is DELETING.
    """
    if state.status is not Status.DELETING:
        return state
    parts = -(-state.trials // SUMMARIES_PER_PART)
    first = max(0, parts - REMOVED_MAX)
    for index in range(first, parts):
        context.write_part(f"trials/{index}", None)
        if state.bill != Bill():
            context.write_part(f"meters/{index}", None)
    state = evolve(state, trials=min(state.trials, first * SUMMARIES_PER_PART))
    metadata = settings_of(context).metadata
    if first or (parts and metadata):
        # The metadata rows need a separate commit.
        context.send(context.address, DeletionContinued())
        return state
    definition = definition_of(context)
    if definition.warm_start is not None:
        remove_pin(definition.warm_start.uuid, state.experiment_id, context)
    if definition.forked_from is not None:
        sort = listing_sort_key(state.experiment_id)
        context.write_row(forks_partition(definition.forked_from), sort, None)
    write_metadata_rows(state.experiment_id, metadata, {}, context)
    for name in ("definition", "settings", "generator"):
        context.write_part(name, None)
    for partition in (LISTING, VALUES) if state.has_values_row else (LISTING,):
        context.write_row(partition, listing_sort_key(state.experiment_id), None)
    context.add_reason("deleted")
    return evolve(state, status=Status.DELETED, name="", message="")
