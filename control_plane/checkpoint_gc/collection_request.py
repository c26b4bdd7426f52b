"""The execution of one experiment's collection request, in steps that may be repeated.

Progress is in the table alone: a checkpoint is marked for deletion by its trial, which leaves a row
that names it; its files are removed; its trial deletes the row. A repeated step does nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.messages.experiment import CollectionEnded
from control_plane.actors.messages.trial import COLLECTED_MAX, CheckpointDeletionRequested
from control_plane.actors.records import Retention
from control_plane.checkpoint_gc.checkpoint_inventory import (
    CheckpointInventory,
    completed_checkpoints,
    inventory_checkpoints,
    newest_checkpoint,
)
from control_plane.checkpoint_gc.erasure import erase_experiment
from control_plane.checkpoint_gc.pins import is_pinned
from control_plane.checkpoint_gc.ranking import CheckpointCandidate, unwanted_checkpoints
from control_plane.checkpoint_gc.rate_limit import NO_FILES, CollectionStep, Steps
from control_plane.checkpoint_gc.removal import remove_incomplete_uploads, remove_marked_files
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_gc.unrecorded_checkpoints import remove_unrecorded
from control_plane.engine.actor_types import parse_json
from control_plane.engine.engine import Engine
from control_plane.state.table import Check, Row

SENDER = "collector"
# Surveys of a collection in which trials went on to change what had been decided upon.
SURVEYS_MAX = 3

_NOTHING = Retention(0, 0, 0)


@dataclass(frozen=True)
class CollectionRequest:
    """A row of `collections`: keep what `retention` says or, with `delete`, nothing at all."""

    row: Row
    generation: int
    retention: Retention
    delete: bool


def decode_request(row: Row) -> CollectionRequest:
    """Decode a row of `collections`."""
    fields = parse_json(row.body)
    retention = _NOTHING if fields["delete"] else Retention(*fields["retention"])
    return CollectionRequest(row, fields["generation"], retention, fields["delete"])


def execute_request(
    stores: Stores, experiment: ExperimentState, request: CollectionRequest
) -> Steps:
    """Execute a request and report its end, in short steps.

    Raises:
        CollectionFailed: something cannot be removed.
        Conflict: the request was replaced by a later one.
    """
    yield from _mark_unwanted(stores.engine, experiment, request)
    yield from remove_marked_files(
        stores, experiment.experiment_id, ended=experiment.status.is_final
    )
    if experiment.status.is_final:
        yield from remove_incomplete_uploads(stores, experiment, delete=request.delete)
    if request.delete:
        yield from remove_unrecorded(stores, experiment)
        yield from erase_experiment(stores, experiment)
    report_end(stores.engine, experiment.experiment_id, request)


def report_end(
    engine: Engine, experiment_id: int, request: CollectionRequest, failure: str = ""
) -> None:
    """Report the end of its collection to the experiment."""
    ended = CollectionEnded(request.generation, failure)
    engine.post_message(addresses.experiment(experiment_id), ended, sender=SENDER)


def list_unwanted(
    engine: Engine,
    experiment: ExperimentState,
    retention: Retention,
    *,
    delete_experiment: bool = False,
) -> Generator[CollectionStep, None, tuple[CheckpointInventory, list[CheckpointCandidate]]]:
    """Survey an experiment's checkpoints and those that a collection with that retention would
    delete, by trial. With `delete_experiment`, its own trials pin nothing, and damaged checkpoints
    go as well, which otherwise count for nothing and stay.
    """
    # What users uploaded is no training's: no rule counts it, and it goes with the experiment.
    inventory = yield from inventory_checkpoints(engine, experiment, everything=delete_experiment)
    deleted_experiment = experiment.experiment_id if delete_experiment else 0

    def is_held(one: CheckpointCandidate) -> bool:
        return one.uuid in inventory.newest or is_pinned(engine.table, one.uuid, deleted_experiment)

    smaller = experiment.smaller_is_better
    return inventory, unwanted_checkpoints(inventory.candidates(), retention, smaller, is_held)


def _mark_unwanted(
    engine: Engine, experiment: ExperimentState, request: CollectionRequest
) -> Steps:
    """Make the trials mark for deletion what the retention does not keep."""
    for _ in range(SURVEYS_MAX):
        inventory, unwanted = yield from list_unwanted(
            engine, experiment, request.retention, delete_experiment=request.delete
        )
        if request.delete:
            _check_all_unwanted(inventory, unwanted)
        changed = False
        for trial_id, group in groupby(unwanted, key=lambda one: one.trial_id):
            before = inventory.by_trial[trial_id]
            # Its trial may have gone on: what was the worst may have been validated since.
            now = completed_checkpoints(engine.table, trial_id, everything=request.delete)
            if now == before:
                yield from _mark_unwanted_of_trial(engine, request, trial_id, before, list(group))
            else:
                changed = True
            yield NO_FILES
        if not changed:
            return


def _check_all_unwanted(
    inventory: CheckpointInventory, unwanted: list[CheckpointCandidate]
) -> None:
    """Raise CollectionFailed if something of an experiment to be deleted must stay."""
    unwanted_uuids = {one.uuid for one in unwanted}
    for one in inventory.candidates():
        if one.uuid not in unwanted_uuids:
            text = f"another experiment or a model version needs its checkpoint {one.uuid}"
            raise CollectionFailed(text, is_transient=False)


def _mark_unwanted_of_trial(
    engine: Engine,
    request: CollectionRequest,
    trial_id: int,
    known: tuple[CheckpointCandidate, ...],
    unwanted: list[CheckpointCandidate],
) -> Steps:
    unwanted_uuids = {one.uuid for one in unwanted}
    newest = newest_checkpoint(one for one in known if one.uuid not in unwanted_uuids)
    # A request that was replaced meanwhile, by one that keeps more, must not go on.
    current = Check(request.row.key, request.row.revision)
    for start in range(0, len(unwanted), COLLECTED_MAX):
        uuids = tuple(one.uuid for one in unwanted[start : start + COLLECTED_MAX])
        replacement = newest.uuid if newest else ""
        message = CheckpointDeletionRequested(uuids, replacement, whole=request.delete)
        address = addresses.trial(trial_id)
        reply = engine.execute_command(address, message, extra_writes=lambda reply: (current,))
        if request.delete and reply != uuids:
            # Somebody was faster; the next try sees who.
            raise CollectionFailed(f"checkpoints of trial {trial_id} are needed")
        yield NO_FILES
