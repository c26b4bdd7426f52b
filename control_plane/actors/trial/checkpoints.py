"""The checkpoints of a trial: the records, and the deletion.

A checkpoint is deleted in two commits, and its files are removed between the commits. So no failure
leaves files without a record, or a COMPLETED record without files. The first commit writes a row
that requests the removal of the files, and the second commit removes the row.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.messages.trial import (
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    CheckpointHandedOver,
    CheckpointReported,
    CheckpointRequested,
    CheckpointUploaded,
    ValidationReported,
)
from control_plane.actors.messages.trial_deletions import (
    PartialDeletionEnded,
    PartialDeletionRequested,
)
from control_plane.actors.pins import PINS, Pin, add_pin, decode_pin, encode_pin
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.evolve import evolve
from control_plane.rows import experiment_rows

CHECKPOINT_PARTS = "checkpoint/"
"""The prefix of the names of parts with checkpoint records. The UUID follows. A part is a stored
row of the trial's state.
"""
CHECKPOINTS = experiment_rows.CHECKPOINT.partition
"""The partition with the trial's id of each checkpoint, by UUID."""


class CheckpointState(StrEnum):
    """The state of a checkpoint. It only moves forward, except from DAMAGED to COMPLETED.

    - DAMAGED: the stored files were reported to differ from the written files.
    - PARTIALLY_DELETED: a user deleted some of the files, and their removal may still be in
      progress.
    - DELETING: the removal of all files was requested.
    """

    COMPLETED = "COMPLETED"
    DAMAGED = "DAMAGED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    DELETING = "DELETING"
    DELETED = "DELETED"

    @property
    def has_files(self) -> bool:
        """Return whether files may remain: the removal of all files was not requested."""
        return self not in (CheckpointState.DELETING, CheckpointState.DELETED)

    @property
    def deletion_text(self) -> str:
        """Return how the checkpoint was deleted, as the end of a sentence `it was ...`.

        PARTIALLY_DELETED gives "partly deleted", and any other state "deleted".
        """
        return "partly deleted" if self is CheckpointState.PARTIALLY_DELETED else "deleted"

    @property
    def may_be_pinned(self) -> bool:
        """Return whether no removal of any file was requested: COMPLETED or DAMAGED."""
        return self in (CheckpointState.COMPLETED, CheckpointState.DAMAGED)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The record of a complete checkpoint: the part `checkpoint/UUID` of the trial."""

    checkpoint: CheckpointRef
    """The checkpoint: the UUID, the trial, the batches and the folder."""
    size_bytes: int
    """The size of the remaining files."""
    files: int
    """The number of remaining files."""
    metric: float | None
    """The searcher metric at the checkpoint's batch, or None."""
    created_ms: int
    """The time at which the checkpoint was recorded, in epoch ms."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """The metadata that the training code or the uploading user set."""
    state: CheckpointState = CheckpointState.COMPLETED
    uploaded_by: str = ""
    """The name of the user who uploaded the checkpoint. "": the trial wrote it."""
    damage: str = ""
    """The reported damage of a checkpoint that is DAMAGED, or was when it was deleted. Else ""."""
    deleted_patterns: tuple[str, ...] = ()
    """The patterns of files that a user deleted (detcloud/shared/file_patterns.py)."""
    is_snapshot: bool = False
    """Whether the checkpoint is a snapshot of a notebook's or shell's folder (snapshots.py)."""


def damaged_record(name: str, cause: str) -> CheckpointRecord:
    """Return the record that replaces a stored record with undecodable bytes. The state is DAMAGED.

    The record does not know the checkpoint's files, so a deletion only removes the record.

    Args:
        name: the name of the record's part, `checkpoint/UUID`.
        cause: the error of the decoder, for users.
    """
    reference = CheckpointRef(name.removeprefix(CHECKPOINT_PARTS), 0, 0, "", "")
    damage = f"its record cannot be read: {cause}"
    return CheckpointRecord(reference, 0, 0, None, 0, state=CheckpointState.DAMAGED, damage=damage)


def apply_checkpoint_message(
    state: TrialState,
    message: CheckpointDeletionRequested
    | CheckpointFilesDeleted
    | PartialDeletionRequested
    | PartialDeletionEnded
    | CheckpointUploaded
    | CheckpointRequested,
    context: StepContext,
) -> TrialState:
    """Apply a message about checkpoints. The trial may have ended.

    Raises:
        CommandRefused: conflict; a copy requests the latest checkpoint, which was deleted.
    """
    match message:
        case CheckpointDeletionRequested():
            return mark_deleting(state, message, context)
        case CheckpointFilesDeleted():
            return mark_deleted(state, message, context)
        case PartialDeletionRequested():
            return mark_partially_deleted(state, message, context)
        case PartialDeletionEnded():
            end_partial_deletion(state, message, context)
        case CheckpointUploaded():
            record_upload(state, message, context)
        case CheckpointRequested():
            hand_over_checkpoint(state, message, context)
    return state


def record_checkpoint(
    state: TrialState, message: CheckpointReported, context: StepContext
) -> TrialState:
    """Record a complete checkpoint in the trial's part `checkpoint/UUID`, and return the state with
    the trial's latest checkpoint.

    The checkpoint becomes the latest unless the present latest has more batches. The trial's steps
    are at least the batches of the checkpoint. The record gets the metric of the validation at that
    batch. A repeated report replaces the record. For a new checkpoint, a row in `checkpoints`
    claims the UUID: the commit fails if another trial claims the UUID meanwhile.

    Return the state unchanged if the checkpoint is recorded but no longer COMPLETED, or was
    uploaded by a user. The same applies if the checkpoint belongs to another trial or lies outside
    the trial's folder. Reports come from training code, which may be wrong or malicious.
    """
    checkpoint = message.checkpoint
    before = context.part(CHECKPOINT_PARTS + checkpoint.uuid, CheckpointRecord)
    if before is not None and (before.state is not CheckpointState.COMPLETED or before.uploaded_by):
        return state
    if before is None and not claim_checkpoint(state, checkpoint, context):
        context.add_reason(f"checkpoint {checkpoint.uuid} is another trial's; not recorded")
        return state
    metric = message.metric
    if state.metric_steps == checkpoint.steps_completed:
        metric = state.metric
    record = CheckpointRecord(
        checkpoint, message.size_bytes, message.files, metric, context.now_ms, message.metadata
    )
    context.write_part(CHECKPOINT_PARTS + checkpoint.uuid, record)
    newest = state.checkpoint
    if newest is not None and newest.steps_completed > checkpoint.steps_completed:
        return state
    return evolve(state, checkpoint=checkpoint, steps=max(state.steps, checkpoint.steps_completed))


def record_upload(state: TrialState, message: CheckpointUploaded, context: StepContext) -> None:
    """Record a checkpoint that a user uploaded. The trial's latest checkpoint does not change.

    A checkpoint that is recorded already stays unchanged. For a new checkpoint, a row outside the
    actor claims the UUID: the commit fails if another trial claims the UUID meanwhile. The reply is
    the state of the record. The reply is "" and nothing is recorded if another trial has the UUID,
    or the path is outside the trial's folder.
    """
    checkpoint = message.checkpoint
    name = CHECKPOINT_PARTS + checkpoint.uuid
    record = context.part(name, CheckpointRecord)
    if record is None and claim_checkpoint(state, checkpoint, context):
        record = CheckpointRecord(
            checkpoint,
            message.size_bytes,
            message.files,
            None,
            context.now_ms,
            message.metadata,
            uploaded_by=message.user,
        )
        context.write_part(name, record)
    context.reply = "" if record is None else record.state.value


def update_checkpoint_metric(
    state: TrialState, message: ValidationReported, context: StepContext
) -> None:
    """Set the metric in the record of the latest checkpoint, from a validation at the checkpoint's
    batch.

    The metric may become None. Do nothing if the trial has no latest checkpoint, or the validation
    is of another batch.
    """
    if state.checkpoint is None or state.checkpoint.steps_completed != message.steps:
        return
    name = CHECKPOINT_PARTS + state.checkpoint.uuid
    record = context.part(name, CheckpointRecord)
    if record is not None:
        context.write_part(name, dataclasses.replace(record, metric=message.metric))


def hand_over_checkpoint(
    state: TrialState, message: CheckpointRequested, context: StepContext
) -> None:
    """Send the latest checkpoint to a copy of this trial, in a CheckpointHandedOver.

    Send None if this trial has no checkpoint. The checkpoint is pinned for the experiment, so that
    no collection deletes it before the experiment is deleted.

    Raises:
        CommandRefused: conflict; the checkpoint was deleted or is being deleted.
    """
    if state.checkpoint is not None:
        add_pin(state.checkpoint.uuid, state.experiment_id, context)
    answer = CheckpointHandedOver(state.trial_id, state.checkpoint)
    context.send(addresses.trial(message.copy_id), answer)


def mark_deleting(
    state: TrialState, message: CheckpointDeletionRequested, context: StepContext
) -> TrialState:
    """Mark checkpoints as DELETING, and write a row in `collections` for each removal of files.

    Pinned checkpoints, unknown checkpoints, and the latest checkpoint and snapshot of a trial that
    has not ended are skipped. The reply is the tuple of the UUIDs that are DELETING now, earlier
    requests included. If the latest checkpoint of an ended trial is DELETING,
    `message.fallback_uuid` becomes the latest.
    """
    deleting = tuple(
        uuid
        for uuid in message.uuids
        if mark_one_deleting(state, uuid, message.deletes_experiment, context)
    )
    context.reply = deleting
    snapshot = state.snapshot
    if snapshot is not None and snapshot.checkpoint.uuid in deleting:
        state = evolve(state, snapshot=dataclasses.replace(snapshot, is_deleted=True))
    return _replace_latest(state, deleting, message.fallback_uuid, context)


def mark_deleted(
    state: TrialState, message: CheckpointFilesDeleted, context: StepContext
) -> TrialState:
    """Mark DELETING checkpoints as DELETED, and remove the rows that requested the removal of
    files.

    The record of a snapshot and the claim of its UUID are removed instead: a notebook saves
    hundreds of snapshots. Unknown checkpoints and other states are skipped. The state of the trial
    does not change.
    """
    for uuid in message.uuids:
        name = CHECKPOINT_PARTS + uuid
        record = context.part(name, CheckpointRecord)
        if record is not None and record.state is CheckpointState.DELETING:
            deleted = dataclasses.replace(record, state=CheckpointState.DELETED)
            context.write_part(name, None if record.is_snapshot else deleted)
            if record.is_snapshot:
                context.write_row(CHECKPOINTS, uuid, None)
            context.write_row(COLLECTIONS, removal_sort_key(state.experiment_id, uuid), None)
    return state


def mark_partially_deleted(
    state: TrialState, message: PartialDeletionRequested, context: StepContext
) -> TrialState:
    """Mark a checkpoint as PARTIALLY_DELETED, and write a row that requests the removal of the
    matching files.

    The reply is whether the checkpoint was marked. Nothing changes in these cases:
    - The record is missing, or is neither COMPLETED nor PARTIALLY_DELETED.
    - The deleted patterns differ from `message.earlier_patterns`.
    - A pin holds the checkpoint, or it is the latest checkpoint of a trial that has not ended.

    If it is the latest checkpoint of an ended trial, `message.fallback_uuid` becomes the latest.
    """
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    context.reply = (
        record is not None
        and record.state in (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)
        # The sender's counts of remaining files are only true for these patterns.
        and record.deleted_patterns == message.earlier_patterns
        and _request_removal(state, message.uuid, deletes_experiment=False, context=context)
    )
    if record is None or not context.reply:
        return state
    marked = dataclasses.replace(
        record,
        state=CheckpointState.PARTIALLY_DELETED,
        deleted_patterns=(*message.earlier_patterns, *message.patterns),
        files=message.files,
        size_bytes=message.size_bytes,
    )
    context.write_part(name, marked)
    return _replace_latest(state, (message.uuid,), message.fallback_uuid, context)


def end_partial_deletion(
    state: TrialState, message: PartialDeletionEnded, context: StepContext
) -> None:
    """Remove the row that requested the removal of a checkpoint's files.

    The row stays if the record is missing, is DELETING or DELETED, or lists other patterns than the
    message.
    """
    record = context.part(CHECKPOINT_PARTS + message.uuid, CheckpointRecord)
    if (
        record is not None
        and record.state is CheckpointState.PARTIALLY_DELETED
        and record.deleted_patterns == message.patterns
    ):
        context.write_row(COLLECTIONS, removal_sort_key(state.experiment_id, message.uuid), None)


def _replace_latest(
    state: TrialState, deleting: tuple[str, ...], fallback_uuid: str, context: StepContext
) -> TrialState:
    """Make `fallback_uuid` the latest checkpoint, if `deleting` contains the latest checkpoint.

    If the fallback has no complete record, the trial has no latest checkpoint. Otherwise return the
    state unchanged.
    """
    if state.checkpoint is None or state.checkpoint.uuid not in deleting:
        return state
    record = context.part(CHECKPOINT_PARTS + fallback_uuid, CheckpointRecord)
    is_complete = record is not None and record.state is CheckpointState.COMPLETED
    return evolve(state, checkpoint=record.checkpoint if record and is_complete else None)


def claim_checkpoint(state: TrialState, checkpoint: CheckpointRef, context: StepContext) -> bool:
    """Claim a checkpoint's UUID for this trial. Return whether the checkpoint belongs to this
    trial.

    The first claim of a UUID writes a row in `checkpoints`. The commit fails if another trial
    claims the UUID meanwhile. Return False, without a claim, for a checkpoint outside the trial's
    folder.
    """
    if not checkpoint.path.startswith(f"{state.experiment_id}/{state.trial_id}/"):
        return False
    row = context.row(CHECKPOINTS, checkpoint.uuid)
    if row.body:
        return int(row.body) == state.trial_id
    context.write_row(CHECKPOINTS, checkpoint.uuid, b"%d" % state.trial_id, expected=row)
    return True


def mark_one_deleting(
    state: TrialState, uuid: str, deletes_experiment: bool, context: StepContext
) -> bool:
    """Mark a checkpoint as DELETING, and request the removal of the files, unless the checkpoint
    must stay.

    Return whether the checkpoint is DELETING now. Return False for an unknown or DELETED
    checkpoint, and if the request is refused.

    Args:
        deletes_experiment: whether the trial's experiment is deleted, so that its pin does not
            count.
    """
    name = CHECKPOINT_PARTS + uuid
    record = context.part(name, CheckpointRecord)
    if record is None or not record.state.has_files:
        return record is not None and record.state is CheckpointState.DELETING
    if not _request_removal(state, uuid, deletes_experiment, context):
        return False
    context.write_part(name, dataclasses.replace(record, state=CheckpointState.DELETING))
    return True


def _request_removal(
    state: TrialState, uuid: str, deletes_experiment: bool, context: StepContext
) -> bool:
    """Write a row that requests the removal of a checkpoint's files, and mark the pin row as
    deleted.

    Return whether the removal was requested. Return False, without a write, if a pin holds the
    checkpoint, or if it is the latest checkpoint or snapshot of a trial that has not ended. The
    commit fails if the pin row changes meanwhile.

    Args:
        deletes_experiment: whether the trial's experiment is deleted, so that its pin does not
            count.
    """
    snapshot = None if state.snapshot is None else state.snapshot.checkpoint
    needed = {one.uuid for one in (state.checkpoint, snapshot) if one is not None}
    if not state.status.is_final and uuid in needed:
        return False
    row = context.row(PINS, uuid)
    if decode_pin(row.body).is_held(state.experiment_id if deletes_experiment else 0):
        return False
    context.write_row(PINS, uuid, encode_pin(Pin(is_deleted=True), row.body), expected=row)
    context.write_row(
        COLLECTIONS, removal_sort_key(state.experiment_id, uuid), b"%d" % state.trial_id
    )
    return True
