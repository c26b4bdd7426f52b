"""The checkpoints of a trial: what is recorded of each, and how they go.

A checkpoint goes in two commits with the removal of its files between them, so that whatever
fails, no file is left that nothing tells of and none is missing that is thought to be there. The
first commit leaves a row that says whose files are to be removed, the second takes it away.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from control_plane.actors import addresses
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import (
    CheckpointFilesDeleted,
    CheckpointHandedOver,
    CheckpointReported,
    CheckpointsUnwanted,
    CheckpointWanted,
    ValidationReported,
)
from control_plane.actors.trial_state import TrialState
from control_plane.evolve import evolve

CHECKPOINT_PARTS = "checkpoint/"
# The rows by which a checkpoint is found by its UUID.
CHECKPOINTS = "checkpoints"
# Rows outside the actors: who started from a checkpoint, and what the collector has to do.
PINS = "pins"
COLLECTIONS = "collections"
REMOVALS = "files/"


class CheckpointState(StrEnum):
    """DELETING: not to be used any more, its files are being removed. It never goes back."""

    COMPLETED = "COMPLETED"
    DELETING = "DELETING"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A complete checkpoint, kept as a part `checkpoint/UUID` of its trial."""

    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    metric: float | None
    created_ms: int
    metadata: Mapping[str, object] = field(default_factory=dict)
    state: CheckpointState = CheckpointState.COMPLETED


@dataclass(frozen=True, slots=True)
class Pin:
    """The row `pins` of a checkpoint: the experiments that started from it, or that it is gone."""

    by: tuple[int, ...] = ()
    gone: bool = False


def checkpointed(state: TrialState, message: CheckpointReported, turn: Turn) -> TrialState:
    """Records a complete checkpoint; the one of the most steps is the trial's latest. Of one that
    was deleted nothing more is heard, nor of one that is not this trial's: it says so itself, and a
    trial may say anything.
    """
    checkpoint = message.checkpoint
    known = turn.part(CHECKPOINT_PARTS + checkpoint.uuid, CheckpointRecord)
    if known is not None and known.state is not CheckpointState.COMPLETED:
        return state
    if known is None and not _is_claimed(state, checkpoint, turn):
        turn.because(f"checkpoint {checkpoint.uuid} is another trial's; not recorded")
        return state
    metric = state.metric if state.metric_steps == checkpoint.steps_completed else None
    record = CheckpointRecord(
        checkpoint, message.size_bytes, message.files, metric, turn.now_ms, message.metadata
    )
    turn.write_part(CHECKPOINT_PARTS + checkpoint.uuid, record)
    newest = state.checkpoint
    if newest is not None and newest.steps_completed > checkpoint.steps_completed:
        return state
    return evolve(state, checkpoint=checkpoint, steps=max(state.steps, checkpoint.steps_completed))


def measured(state: TrialState, message: ValidationReported, turn: Turn) -> None:
    """A checkpoint's metric is that of the validation at its step, which may come after it."""
    if state.checkpoint is None or state.checkpoint.steps_completed != message.steps:
        return
    name = CHECKPOINT_PARTS + state.checkpoint.uuid
    record = turn.part(name, CheckpointRecord)
    if record is not None:
        turn.write_part(name, dataclasses.replace(record, metric=message.metric))


def handed_over(state: TrialState, message: CheckpointWanted, turn: Turn) -> None:
    """Passes the latest checkpoint on to a copy of this trial. Nobody collects it while there is
    the experiment.
    """
    if state.checkpoint is not None:
        pinned(state.checkpoint.uuid, state.experiment_id, turn)
    answer = CheckpointHandedOver(state.trial_id, state.checkpoint)
    turn.send(addresses.trial(message.by), answer)


def read_pin(body: bytes) -> Pin:
    """A row of `pins`; without a body, as it is without a row."""
    if not body:
        return Pin()
    fields = json.loads(body)
    return Pin(tuple(fields["by"]), fields["gone"])


def write_pin(pin: Pin) -> bytes:
    """The body of the row."""
    return json.dumps({"by": list(pin.by), "gone": pin.gone}).encode()


def pinned(uuid: str, experiment_id: int, turn: Turn) -> None:
    """Notes that the experiment starts from a checkpoint, in the commit that says so.

    Raises:
        Refused: conflict; it is going or gone.
    """
    seen = turn.row(PINS, uuid)
    pin = read_pin(seen.body)
    if pin.gone:
        raise Refused("conflict", f"checkpoint {uuid} was deleted")
    if experiment_id not in pin.by:
        pin = dataclasses.replace(pin, by=(*pin.by, experiment_id))
    turn.write_row(PINS, uuid, write_pin(pin), seen=seen)


def unpinned(uuid: str, experiment_id: int, turn: Turn) -> None:
    """Notes that the experiment is no more."""
    seen = turn.row(PINS, uuid)
    pin = read_pin(seen.body)
    if experiment_id in pin.by:
        by = tuple(other for other in pin.by if other != experiment_id)
        body = write_pin(dataclasses.replace(pin, by=by)) if by or pin.gone else None
        turn.write_row(PINS, uuid, body, seen=seen)


def removal_sort(experiment_id: int, uuid: str) -> str:
    """The sort key of the row in `collections` that says whose files are to be removed."""
    return f"{REMOVALS}{experiment_id:012d}/{uuid}"


def condemned(state: TrialState, message: CheckpointsUnwanted, turn: Turn) -> TrialState:
    """Condemns those of the checkpoints that may go; replies with all that are DELETING now."""
    going = tuple(uuid for uuid in message.uuids if _is_going(state, uuid, message.whole, turn))
    turn.reply = going
    if state.checkpoint is None or state.checkpoint.uuid not in going:
        return state
    record = turn.part(CHECKPOINT_PARTS + message.instead, CheckpointRecord)
    stays = record is not None and record.state is CheckpointState.COMPLETED
    return evolve(state, checkpoint=record.checkpoint if record and stays else None)


def files_deleted(state: TrialState, message: CheckpointFilesDeleted, turn: Turn) -> TrialState:
    """The files of the checkpoints are gone."""
    for uuid in message.uuids:
        name = CHECKPOINT_PARTS + uuid
        record = turn.part(name, CheckpointRecord)
        if record is not None and record.state is CheckpointState.DELETING:
            deleted = dataclasses.replace(record, state=CheckpointState.DELETED)
            turn.write_part(name, deleted)
            turn.write_row(COLLECTIONS, removal_sort(state.experiment_id, uuid), None)
    return state


def _is_claimed(state: TrialState, checkpoint: CheckpointRef, turn: Turn) -> bool:
    """Whether a checkpoint is this trial's to record. By the row under its UUID it is found, and
    whoever writes that first has it: the commit fails if another trial's comes in between.
    """
    if not checkpoint.path.startswith(f"{state.experiment_id}/{state.trial_id}/"):
        return False
    seen = turn.row(CHECKPOINTS, checkpoint.uuid)
    if seen.body:
        return int(seen.body) == state.trial_id
    turn.write_row(CHECKPOINTS, checkpoint.uuid, b"%d" % state.trial_id, seen=seen)
    return True


def _is_going(state: TrialState, uuid: str, whole: bool, turn: Turn) -> bool:
    """Whether the checkpoint is DELETING after this: it was, or nothing holds it. If the `whole`
    experiment goes, what of its own started from it does too.
    """
    name = CHECKPOINT_PARTS + uuid
    record = turn.part(name, CheckpointRecord)
    if record is None or record.state is not CheckpointState.COMPLETED:
        return record is not None and record.state is CheckpointState.DELETING
    if not state.status.final and state.checkpoint is not None and state.checkpoint.uuid == uuid:
        return False
    seen = turn.row(PINS, uuid)
    own = (state.experiment_id,) if whole else ()
    if set(read_pin(seen.body).by).difference(own):
        return False
    turn.write_row(PINS, uuid, write_pin(Pin(gone=True)), seen=seen)
    turn.write_part(name, dataclasses.replace(record, state=CheckpointState.DELETING))
    turn.write_row(COLLECTIONS, removal_sort(state.experiment_id, uuid), b"%d" % state.trial_id)
    return True
