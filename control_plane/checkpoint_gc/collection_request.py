"""The execution of an experiment's collection request, in steps that may be repeated.

Progress is stored only in the table. First the trial marks a checkpoint as DELETING and writes a
removal row. Then the collector removes the files. Finally the trial deletes the row. A repeated
step does nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import groupby

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState, Expiry
from control_plane.actors.messages.experiment import CollectionEnded
from control_plane.actors.messages.trial import COLLECTED_MAX, CheckpointDeletionRequested
from control_plane.actors.records import Retention
from control_plane.checkpoint_gc.checkpoint_inventory import (
    CheckpointInventory,
    completed_checkpoints,
    inventory_checkpoints,
    newest_checkpoint,
)
from control_plane.checkpoint_gc.data_expiry import delete_expired_data
from control_plane.checkpoint_gc.erasure import erase_experiment
from control_plane.checkpoint_gc.package_archives import remove_package_archives
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
# The most surveys of a collection. A survey is repeated if a trial's checkpoints changed meanwhile.
SURVEYS_MAX = 3

_NOTHING = Retention(0, 0, 0)


@dataclass(frozen=True)
class CollectionRequest:
    """A request in a row of `collections`: delete checkpoints that the retention does not keep."""

    row: Row
    generation: int
    """The number of the request, which the report of the end repeats."""
    retention: Retention
    """The numbers of checkpoints to keep; all 0 if the experiment is deleted."""
    delete: bool
    """Whether the experiment is deleted with all its data."""
    expiry: Expiry | None = None
    """The deletion of logs and metrics whose retention has ended, or None."""


def decode_request(row: Row) -> CollectionRequest:
    """Decode a request's row of `collections`; `retention` is all 0 for the deletion of an
    experiment.
    """
    fields = parse_json(row.body)
    retention = _NOTHING if fields["delete"] else Retention(*fields["retention"])
    expiry = Expiry(*fields["expiry"]) if "expiry" in fields else None
    return CollectionRequest(row, fields["generation"], retention, fields["delete"], expiry)


def execute_request(
    stores: Stores, experiment: ExperimentState, request: CollectionRequest
) -> Steps:
    """Execute a request in short steps and report its end to the experiment.

    Mark the checkpoints that the retention does not keep, and remove the files of all marked
    checkpoints. If the experiment has ended, also remove incomplete uploads and archives of
    packages. For a deletion, also remove unrecorded checkpoints and erase the experiment's data.
    Delete expired logs and metrics, unless the cluster's schedule postpones their deletion.

    Raises:
        CollectionFailed: a checkpoint must stay, or something cannot be removed.
        Conflict: a later request replaced this request.
        CommandRefused: a trial refuses a command.
        TableError: the state table failed.
    """
    yield from _mark_unwanted(stores.engine, experiment, request)
    yield from remove_marked_files(
        stores, experiment.experiment_id, ended=experiment.status.is_final
    )
    if experiment.status.is_final:
        yield from remove_incomplete_uploads(stores, experiment, delete=request.delete)
        yield from remove_package_archives(stores, experiment.experiment_id)
    if request.delete:
        yield from remove_unrecorded(stores, experiment)
        yield from erase_experiment(stores, experiment)
    waits_until_ms = 0
    if request.expiry is not None:
        waits_until_ms = _postponed_ms(stores, request.expiry)
    if request.expiry is not None and not waits_until_ms:
        yield from delete_expired_data(
            stores, experiment, request.expiry, Check(request.row.key, request.row.revision)
        )
    report_end(stores.engine, experiment.experiment_id, request, expires_ms=waits_until_ms)


def report_end(
    engine: Engine,
    experiment_id: int,
    request: CollectionRequest,
    failure: str = "",
    *,
    expires_ms: int = 0,
) -> None:
    """Post CollectionEnded to the experiment, and let the experiment process the message.

    Raises TableError.

    Args:
        failure: the reason for the user why the collection failed; "" means success.
        expires_ms: the time to which the deletion of expired data is postponed; 0 for none.
    """
    ended = CollectionEnded(request.generation, failure, expires_ms)
    engine.post_message(addresses.experiment(experiment_id), ended, sender=SENDER)


def _postponed_ms(stores: Stores, expiry: Expiry) -> int:
    """Return the time to which the cluster's schedule postpones a deletion; 0 for no postponement.

    The schedule does not postpone a deletion for which an admin or an earlier time of the schedule
    asks.
    """
    next_ms = None if expiry.is_scheduled else stores.next_deletion_ms(expiry.until_ms)
    return 0 if next_ms is None or next_ms <= stores.engine.clock() else next_ms


def list_unwanted(
    engine: Engine,
    experiment: ExperimentState,
    retention: Retention,
    *,
    delete_experiment: bool = False,
) -> Generator[CollectionStep, None, tuple[CheckpointInventory, list[CheckpointCandidate]]]:
    """List the checkpoints of an experiment that a collection with this retention would delete.

    Yield a step after each trial. Return the inventory of the experiment's checkpoints, and the
    checkpoints to delete, grouped by trial. Pinned checkpoints and the newest checkpoints of
    running trials are never in the list. Nothing is written. Raises TableError.

    Args:
        delete_experiment: whether the whole experiment is to be deleted. Then damaged, partially
            deleted and uploaded checkpoints count as well, and the experiment's own pins do not.
    """
    # Uploaded checkpoints belong to no training run: the rules ignore uploads, and only the
    # deletion of the experiment deletes uploads.
    inventory = yield from inventory_checkpoints(engine, experiment, everything=delete_experiment)
    deleted_experiment = experiment.experiment_id if delete_experiment else 0

    def is_held(one: CheckpointCandidate) -> bool:
        return one.uuid in inventory.newest or is_pinned(engine.table, one.uuid, deleted_experiment)

    smaller = experiment.smaller_is_better
    return inventory, unwanted_checkpoints(inventory.candidates(), retention, smaller, is_held)


def _mark_unwanted(
    engine: Engine, experiment: ExperimentState, request: CollectionRequest
) -> Steps:
    """Command the trials to mark the checkpoints for deletion that the retention does not keep.

    If a trial's checkpoints changed meanwhile, survey the experiment again, in all at most
    SURVEYS_MAX times. The checkpoints of a trial that keeps changing stay unmarked.

    Raises:
        CollectionFailed: the experiment is to be deleted, and a checkpoint must stay.
        Conflict: a later request replaced this request.
        CommandRefused: a trial refuses the command.
        TableError: the state table failed.
    """
    for _ in range(SURVEYS_MAX):
        inventory, unwanted = yield from list_unwanted(
            engine, experiment, request.retention, delete_experiment=request.delete
        )
        if request.delete:
            _check_all_unwanted(inventory, unwanted)
        changed = False
        for trial_id, group in groupby(unwanted, key=lambda one: one.trial_id):
            before = inventory.by_trial[trial_id]
            # The trial may have continued: a validation may have improved the worst checkpoint.
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
    """Raise CollectionFailed, as permanent, if a checkpoint of the inventory is not `unwanted`.

    Called for an experiment that is to be deleted.
    """
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
    """Command a trial to mark checkpoints for deletion, COLLECTED_MAX in each step.

    If the latest checkpoint of an ended trial is marked, the newest checkpoint in `known` that is
    not `unwanted` becomes the latest. The trial skips pinned checkpoints and the latest checkpoint
    of a trial that has not ended. Checkpoints that the trial skips stay without an error, unless
    the experiment is to be deleted.

    Args:
        known: the trial's complete checkpoints.
        unwanted: the checkpoints in `known` to mark.

    Raises:
        CollectionFailed: the experiment is to be deleted, and the trial keeps a checkpoint.
        Conflict: a later request replaced this request.
        CommandRefused: the trial refuses the command.
        TableError: the state table failed.
    """
    unwanted_uuids = {one.uuid for one in unwanted}
    newest = newest_checkpoint(one for one in known if one.uuid not in unwanted_uuids)
    # The commit fails if another request, which may keep more, has replaced this request.
    current = Check(request.row.key, request.row.revision)
    for start in range(0, len(unwanted), COLLECTED_MAX):
        uuids = tuple(one.uuid for one in unwanted[start : start + COLLECTED_MAX])
        replacement = newest.uuid if newest else ""
        message = CheckpointDeletionRequested(uuids, replacement, deletes_experiment=request.delete)
        address = addresses.trial(trial_id)
        reply = engine.execute_command(address, message, extra_writes=lambda reply: (current,))
        if request.delete and reply != uuids:
            # A new pin appeared meanwhile; the next try reports it.
            raise CollectionFailed(f"checkpoints of trial {trial_id} are needed")
        yield NO_FILES
