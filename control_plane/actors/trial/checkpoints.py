"""The checkpoints of a trial: the record of each, and their deletion.

A checkpoint is deleted in two commits, with the removal of its files between them, so that no
failure leaves a file without a record, or a COMPLETED record without its files. The first commit
writes a row that asks for the files to be removed, the second one removes the row.
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
    PartialDeletionEnded,
    PartialDeletionRequested,
    ValidationReported,
)
from control_plane.actors.pins import PINS, Pin, add_pin, decode_pin, encode_pin
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import TrialState
from control_plane.evolve import evolve

CHECKPOINT_PARTS = "checkpoint/"
# The partition in which a checkpoint's trial is found by the checkpoint's UUID.
CHECKPOINTS = "checkpoints"


class CheckpointState(StrEnum):
    """The state of a checkpoint, which never goes back but from DAMAGED to COMPLETED. DAMAGED: its
    files are said not to be those that were written. PARTIALLY_DELETED: a user deleted some of its
    files, or they are being removed. DELETING: all of its files are being removed.
    """

    COMPLETED = "COMPLETED"
    DAMAGED = "DAMAGED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    DELETING = "DELETING"
    DELETED = "DELETED"

    @property
    def has_files(self) -> bool:
        """Whether files of it may be there that nobody has begun to remove."""
        return self not in (CheckpointState.DELETING, CheckpointState.DELETED)

    @property
    def deletion_text(self) -> str:
        """The participle that says how a checkpoint was deleted, for sentences: `it was ...`."""
        return "partly deleted" if self is CheckpointState.PARTIALLY_DELETED else "deleted"

    @property
    def may_be_pinned(self) -> bool:
        """Whether nobody has begun to remove any of its files."""
        return self in (CheckpointState.COMPLETED, CheckpointState.DAMAGED)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The record of a complete checkpoint: part `checkpoint/UUID` of its trial. `uploaded_by`: the
    user who uploaded it, "" for one that the trial stored itself. `damage`: what was found, of one
    that is DAMAGED or was deleted so. `deleted_patterns` choose those of its files that a user
    deleted (detcloud/shared/file_patterns.py), which `files` and `size_bytes` do not count.
    """

    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    metric: float | None
    created_ms: int
    metadata: Mapping[str, object] = field(default_factory=dict)
    state: CheckpointState = CheckpointState.COMPLETED
    uploaded_by: str = ""
    damage: str = ""
    deleted_patterns: tuple[str, ...] = ()


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
    """Apply a message about checkpoints that a trial takes whether it has ended or not."""
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
    """Record a complete checkpoint; the one of the most steps is the trial's latest.

    Ignores a checkpoint that was deleted or uploaded, and one that belongs to another trial:
    reports come from training code, which may claim anything.
    """
    checkpoint = message.checkpoint
    known = context.part(CHECKPOINT_PARTS + checkpoint.uuid, CheckpointRecord)
    if known is not None and (known.state is not CheckpointState.COMPLETED or known.uploaded_by):
        return state
    if known is None and not _claim_checkpoint(state, checkpoint, context):
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
    """Record a checkpoint that a user uploaded; the trial's latest stays the one it stored itself.

    One that is recorded already stays as it is.
    """
    checkpoint = message.checkpoint
    name = CHECKPOINT_PARTS + checkpoint.uuid
    record = context.part(name, CheckpointRecord)
    if record is None and _claim_checkpoint(state, checkpoint, context):
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
    """Give the latest checkpoint the metric of a validation at its step, which may come later."""
    if state.checkpoint is None or state.checkpoint.steps_completed != message.steps:
        return
    name = CHECKPOINT_PARTS + state.checkpoint.uuid
    record = context.part(name, CheckpointRecord)
    if record is not None:
        context.write_part(name, dataclasses.replace(record, metric=message.metric))


def hand_over_checkpoint(
    state: TrialState, message: CheckpointRequested, context: StepContext
) -> None:
    """Send the latest checkpoint to a copy of this trial, pinned so that it is kept as long as the
    experiment.
    """
    if state.checkpoint is not None:
        add_pin(state.checkpoint.uuid, state.experiment_id, context)
    answer = CheckpointHandedOver(state.trial_id, state.checkpoint)
    context.send(addresses.trial(message.by), answer)


def mark_deleting(
    state: TrialState, message: CheckpointDeletionRequested, context: StepContext
) -> TrialState:
    """Mark as DELETING those of the checkpoints that may go; replies with all that are so now."""
    deleting = tuple(
        uuid for uuid in message.uuids if _mark_one_deleting(state, uuid, message.whole, context)
    )
    context.reply = deleting
    return _replace_latest(state, deleting, message.instead, context)


def mark_deleted(
    state: TrialState, message: CheckpointFilesDeleted, context: StepContext
) -> TrialState:
    """Mark as DELETED checkpoints whose files were removed."""
    for uuid in message.uuids:
        name = CHECKPOINT_PARTS + uuid
        record = context.part(name, CheckpointRecord)
        if record is not None and record.state is CheckpointState.DELETING:
            deleted = dataclasses.replace(record, state=CheckpointState.DELETED)
            context.write_part(name, deleted)
            context.write_row(COLLECTIONS, removal_sort_key(state.experiment_id, uuid), None)
    return state


def mark_partially_deleted(
    state: TrialState, message: PartialDeletionRequested, context: StepContext
) -> TrialState:
    """Mark a checkpoint as PARTIALLY_DELETED if it may go; replies with whether that is done."""
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    context.reply = (
        record is not None
        and record.state in (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)
        # The sender counted what is left without any other patterns.
        and record.deleted_patterns == message.earlier
        and _release(state, message.uuid, whole=False, context=context)
    )
    if record is None or not context.reply:
        return state
    marked = dataclasses.replace(
        record,
        state=CheckpointState.PARTIALLY_DELETED,
        deleted_patterns=(*message.earlier, *message.patterns),
        files=message.files,
        size_bytes=message.size_bytes,
    )
    context.write_part(name, marked)
    return _replace_latest(state, (message.uuid,), message.instead, context)


def end_partial_deletion(
    state: TrialState, message: PartialDeletionEnded, context: StepContext
) -> None:
    """Remove the row that asks for a checkpoint's files to be removed, unless it asks for others by
    now.
    """
    record = context.part(CHECKPOINT_PARTS + message.uuid, CheckpointRecord)
    if (
        record is not None
        and record.state is CheckpointState.PARTIALLY_DELETED
        and record.deleted_patterns == message.patterns
    ):
        context.write_row(COLLECTIONS, removal_sort_key(state.experiment_id, message.uuid), None)


def _replace_latest(
    state: TrialState, deleting: tuple[str, ...], instead: str, context: StepContext
) -> TrialState:
    """Make another checkpoint the trial's latest if that is being deleted; none if the other one is
    not complete.
    """
    if state.checkpoint is None or state.checkpoint.uuid not in deleting:
        return state
    record = context.part(CHECKPOINT_PARTS + instead, CheckpointRecord)
    stays = record is not None and record.state is CheckpointState.COMPLETED
    return evolve(state, checkpoint=record.checkpoint if record and stays else None)


def _claim_checkpoint(state: TrialState, checkpoint: CheckpointRef, context: StepContext) -> bool:
    """Claim a checkpoint's UUID for this trial; whether it is this trial's to record. The trial
    whose row is first has it: the commit fails if another trial's row comes in between.
    """
    if not checkpoint.path.startswith(f"{state.experiment_id}/{state.trial_id}/"):
        return False
    row = context.row(CHECKPOINTS, checkpoint.uuid)
    if row.body:
        return int(row.body) == state.trial_id
    context.write_row(CHECKPOINTS, checkpoint.uuid, b"%d" % state.trial_id, expected=row)
    return True


def _mark_one_deleting(state: TrialState, uuid: str, whole: bool, context: StepContext) -> bool:
    """Mark a checkpoint as DELETING if no pin holds it; whether it is DELETING now. Where the
    `whole` experiment is deleted, its own pin does not count.
    """
    name = CHECKPOINT_PARTS + uuid
    record = context.part(name, CheckpointRecord)
    if record is None or not record.state.has_files:
        return record is not None and record.state is CheckpointState.DELETING
    if not _release(state, uuid, whole, context):
        return False
    context.write_part(name, dataclasses.replace(record, state=CheckpointState.DELETING))
    return True


def _release(state: TrialState, uuid: str, whole: bool, context: StepContext) -> bool:
    """Ask for files of a checkpoint to be removed, unless its trial needs it or a pin holds it;
    whether that is done.
    """
    if not state.status.is_final and state.checkpoint is not None and state.checkpoint.uuid == uuid:
        return False
    row = context.row(PINS, uuid)
    if decode_pin(row.body).is_held(state.experiment_id if whole else 0):
        return False
    context.write_row(PINS, uuid, encode_pin(Pin(gone=True)), expected=row)
    context.write_row(
        COLLECTIONS, removal_sort_key(state.experiment_id, uuid), b"%d" % state.trial_id
    )
    return True
