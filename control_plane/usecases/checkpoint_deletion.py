"""Deletion of checkpoints, files of checkpoints, and TensorBoard event files by users."""

import time

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointDeletionRequested
from control_plane.actors.messages.trial_deletions import PartialDeletionRequested
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.checkpoint_gc.checkpoint_inventory import (
    completed_checkpoints,
    newest_checkpoint,
)
from control_plane.checkpoint_gc.erasure import remove_tensorboard_files
from control_plane.checkpoint_gc.rate_limit import DeletionRateLimiter, run_steps
from control_plane.checkpoint_gc.stores import CollectionFailed, stores_of
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.checkpoint_files import checkpoint_folder, choose_files
from control_plane.queries.cluster_configuration import deletion_limit
from control_plane.queries.collection import find_need
from control_plane.services import Services
from control_plane.state.table import Write
from control_plane.usecases.idempotency import ExtraWrites
from detcloud.shared.file_patterns import PATTERNS_MAX

# Gateways end a request after 30 seconds; this leaves time for the answer.
REQUEST_SECONDS_MAX = 20.0


def delete_checkpoint(
    services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
) -> int:
    """Mark a checkpoint as DELETING and request the removal of all files; return the trial's id.

    The commit changes the trial's record, marks the checkpoint's pin row as gone, and adds a row
    for a later collection, which deletes the files. For a checkpoint that is already marked or
    deleted, commit only the extra writes. If the checkpoint is the trial's latest, the newest other
    complete checkpoint of the trial takes its place.

    Args:
        services: the services with the engine and the state table.
        uuid: the full UUID.
        caller: the user.
        extra_writes: returns further writes of the commit, given the trial's id.

    Raises:
        RequestError: not_found, if the checkpoint does not exist; invalid, if `uuid` is not a UUID;
            conflict, if the checkpoint is pinned or a trial that has not ended continues from it;
            unavailable, if the trial is too busy.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    record, _ = checkpoints.get_checkpoint(services, uuid)
    trial_id = record.checkpoint.trial_id

    def check_reply(reply: object) -> tuple[Write, ...]:
        if not (isinstance(reply, tuple) and uuid in reply):
            _check_deleted(services, record)
        return extra_writes(trial_id)

    message = CheckpointDeletionRequested(
        (uuid,), fallback_uuid=_replacement(services, trial_id, uuid)
    )
    services.engine.execute_command(
        addresses.trial(trial_id), message, by=caller.user, extra_writes=check_reply
    )
    return trial_id


def delete_checkpoint_files(
    services: Services,
    uuid: str,
    patterns: tuple[str, ...],
    caller: Principal,
    extra_writes: ExtraWrites,
) -> int:
    """Mark a checkpoint's files that match any pattern for deletion; return the trial's id.

    Afterwards the checkpoint is PARTIALLY_DELETED: users can download the remaining files, and no
    trial can start from it. If it is the trial's latest, the newest other complete checkpoint takes
    its place. If all remaining files match, the whole checkpoint is deleted as by
    `delete_checkpoint`. A later collection deletes the files.

    Args:
        services: the services with the engine and the state table.
        uuid: the full UUID.
        patterns: the patterns of paths, such as 'optimizer/**'.
        caller: the user.
        extra_writes: returns further writes of the commit, given the trial's id.

    Raises:
        RequestError: not_found, if the checkpoint does not exist or was deleted. invalid, if `uuid`
            is not a UUID, no file matches, or the checkpoint's record would hold more than
            PATTERNS_MAX patterns. conflict, if the checkpoint is damaged or pinned, its manifest
            differs from the record, its trial needs it, or it changed in the meantime. unavailable,
            if the store does not answer or the trial is too busy.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    record, _ = checkpoints.get_checkpoint(services, uuid)
    if record.state is CheckpointState.DAMAGED:
        text = f"checkpoint {uuid} is damaged, and can only be deleted as a whole"
        raise RequestError(Code.CONFLICT, f"{text}: {record.damage}")
    folder = checkpoint_folder(services, uuid)
    chosen = choose_files(folder, patterns)
    if len(chosen) == len(folder.files):
        return delete_checkpoint(services, uuid, caller, extra_writes)
    _check_patterns((*record.deleted_patterns, *patterns))
    trial_id = record.checkpoint.trial_id

    def check_reply(reply: object) -> tuple[Write, ...]:
        if reply is not True:
            raise _refusal(services, record)
        return extra_writes(trial_id)

    message = PartialDeletionRequested(
        uuid,
        patterns,
        earlier_patterns=record.deleted_patterns,
        files=len(folder.files) - len(chosen),
        size_bytes=sum(file.size for file in folder.files) - sum(file.size for file in chosen),
        fallback_uuid=_replacement(services, trial_id, uuid),
    )
    services.engine.execute_command(
        addresses.trial(trial_id), message, by=caller.user, extra_writes=check_reply
    )
    return trial_id


def delete_tensorboard_files(
    services: Services, experiment_id: int, extra_writes: ExtraWrites
) -> int:
    """Delete the TensorBoard event files of an ended experiment; return the experiment's id.

    A missing folder is not an error. The cluster's limit of deletions slows the deletion down. If
    REQUEST_SECONDS_MAX is too short, the deleted files stay deleted, and the user must repeat the
    request. The extra writes are committed after the last file.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, if the experiment has
            not ended; unavailable, if the store fails or files remain.
        Conflict: the condition of an extra write does not hold; the files are deleted.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    if not state.status.is_final:
        text = f"experiment {experiment_id} is {state.status}: its trials may still write there"
        raise RequestError(Code.CONFLICT, text)
    work = remove_tensorboard_files(stores_of(services), experiment_id)
    limiter = DeletionRateLimiter(lambda: deletion_limit(services.table))
    until = time.monotonic() + REQUEST_SECONDS_MAX
    try:
        is_done = run_steps(work, limiter, lambda: until - time.monotonic())
    except (OSError, CollectionFailed) as error:
        text = f"the files cannot be removed: {error}"
        raise RequestError(Code.UNAVAILABLE, text) from None
    if not is_done:
        text = "some of the files are deleted; the cluster's limit of deletions delays the rest"
        raise RequestError(Code.UNAVAILABLE, f"{text}; repeat the request")
    writes = extra_writes(experiment_id)
    if writes:
        services.table.commit(writes)
    return experiment_id


def _check_patterns(patterns: tuple[str, ...]) -> None:
    """Check that a checkpoint's record would have at most PATTERNS_MAX patterns.

    `patterns` are those of earlier deletions and the new ones.

    Raises:
        RequestError: invalid, for more patterns.
    """
    if len(patterns) > PATTERNS_MAX:
        text = (
            f"together with the patterns of earlier deletions, {len(patterns)} patterns would be "
            f"stored; the limit is {PATTERNS_MAX}"
        )
        raise invalid("glob", text, "choose folders, such as 'optimizer/**', or delete all of it")


def _replacement(services: Services, trial_id: int, uuid: str) -> str:
    """Return the UUID of the trial's newest complete checkpoint apart from `uuid`, or ""."""
    completed = completed_checkpoints(services.table, trial_id)
    newest = newest_checkpoint([reference for reference in completed if reference.uuid != uuid])
    return newest.uuid if newest else ""


def _check_deleted(services: Services, record: CheckpointRecord) -> None:
    """Check that the record of a checkpoint, read again, is DELETED.

    Raises:
        RequestError: conflict, with the reason why the checkpoint cannot be deleted.
    """
    reference = record.checkpoint
    now = services.engine.read_part(
        addresses.trial(reference.trial_id), CHECKPOINT_PARTS + reference.uuid
    )
    if not isinstance(now, CheckpointRecord) or now.state is not CheckpointState.DELETED:
        raise _refusal(services, record)


def _refusal(services: Services, record: CheckpointRecord) -> RequestError:
    """Return RequestError conflict with the reason why the checkpoint stays; raise nothing.

    The reason is a pin, or a trial that has not ended and continues from the checkpoint. Without
    either, the message says that the checkpoint was changed in the meantime.
    """
    why = find_need(services, record) or "it was changed in the meantime; try again"
    text = f"checkpoint {record.checkpoint.uuid} cannot be deleted: {why}"
    return RequestError(Code.CONFLICT, text)
