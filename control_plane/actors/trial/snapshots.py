"""The snapshots of a notebook's or shell's folder: checkpoints of the trial.

Only the newest snapshot is kept. The commit that records a snapshot also requests the removal of
the snapshot before. A pinned snapshot stays: another run starts with its files.
"""

from control_plane.actors.messages.trial import CheckpointReported
from control_plane.actors.records import Snapshot
from control_plane.actors.step import StepContext
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    claim_checkpoint,
    mark_one_deleting,
)
from control_plane.actors.trial.state import TrialState
from control_plane.evolve import evolve

KIND, FOLDER = "kind", "folder"
"""The field of a checkpoint's metadata that marks a snapshot, and the value of this field."""


def is_snapshot(state: TrialState, message: CheckpointReported) -> bool:
    """Return whether a reported checkpoint is a snapshot of the folder of this trial.

    False for a trial that keeps no snapshots, whatever the metadata of the checkpoint are.
    """
    return state.settings.snapshots is not None and message.metadata.get(KIND) == FOLDER


def record_snapshot(
    state: TrialState, message: CheckpointReported, context: StepContext
) -> TrialState:
    """Record a snapshot, request the removal of the former newest snapshot, and return the state.

    A snapshot that is recorded already changes nothing. A late snapshot, whose number is not above
    the number of the newest snapshot, is recorded as DELETING. The latest checkpoint and the steps
    of the trial do not change. Return the state unchanged if the checkpoint belongs to another
    trial or lies outside the trial's folder.
    """
    checkpoint, newest = message.checkpoint, state.snapshot
    name = CHECKPOINT_PARTS + checkpoint.uuid
    if context.part(name, CheckpointRecord) is not None:
        return state
    if not claim_checkpoint(state, checkpoint, context):
        context.add_reason(f"snapshot {checkpoint.uuid} is another trial's; not recorded")
        return state
    record = CheckpointRecord(
        checkpoint,
        message.size_bytes,
        message.files,
        None,
        context.now_ms,
        message.metadata,
        is_snapshot=True,
    )
    context.write_part(name, record)
    if newest is None:
        return evolve(state, snapshot=Snapshot(checkpoint, message.size_bytes, context.now_ms))
    if checkpoint.steps_completed <= newest.checkpoint.steps_completed:
        mark_one_deleting(state, checkpoint.uuid, deletes_experiment=False, context=context)
        return state
    state = evolve(state, snapshot=Snapshot(checkpoint, message.size_bytes, context.now_ms))
    former = newest.checkpoint.uuid
    mark_one_deleting(state, former, deletes_experiment=False, context=context)
    return state
