"""Damaged checkpoints: the record of the damage, and the older checkpoint that replaces the
damaged.

Reports of damage come from training code, which may be wrong or malicious. So a report marks only a
checkpoint of the same trial and deletes nothing. It excuses a failure only if the run trained no
further.
"""

import dataclasses

from control_plane.actors.messages.trial import (
    FALLBACKS_MAX,
    CheckpointDamageReported,
    CheckpointVerified,
)
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import StepContext
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.actors.trial.state import Allocation, Damage, LoadFailure, TrialState
from control_plane.evolve import evolve
from detcloud.shared.plurals import count_text

DAMAGES_KEPT = 5


def record_damage(
    state: TrialState,
    allocation: Allocation,
    message: CheckpointDamageReported,
    context: StepContext,
) -> TrialState:
    """Mark the latest checkpoint as damaged, and let the next run start from an older checkpoint.

    The first complete fallback becomes the latest checkpoint. Without a fallback, the trial has no
    checkpoint. The damage is added to `recent_damages`. The allocation goes on. Special cases:
    - A report about another checkpoint changes nothing.
    - A trial without a checkpoint has started from another trial's. The damage is recorded, but
      that checkpoint is not marked. A failure to load that checkpoint is not recorded.
    - The first failure to load a checkpoint is only noted, and the next run loads the same
      checkpoint.
    """
    latest, uuid = state.checkpoint, message.uuid
    if latest is None and message.is_load_failure:
        return state
    if latest is None:
        return _record_foreign_damage(state, message, context)
    if latest.uuid != uuid:
        return state
    if message.is_load_failure:
        if not _is_load_given_up(state, uuid):
            context.add_reason("the next run loads it again, and if that fails, an older one")
            return evolve(state, load_failure=LoadFailure(state.epoch, uuid))
        message = dataclasses.replace(message, cause=f"it cannot be loaded: {message.cause}")
    _mark_damaged(message, context)
    fallback = _find_fallback(latest, message.fallbacks, context)
    steps = fallback.steps_completed if fallback else 0
    place = f"checkpoint {fallback.uuid} at batch {steps}" if fallback else "the beginning"
    lost = latest.steps_completed - steps
    again = count_text(lost, "batch", "batches")
    context.add_reason(f"the next run begins from {place} and trains {again} again")
    damage = Damage(
        at_ms=context.now_ms,
        epoch=state.epoch,
        uuid=uuid,
        trial_id=state.trial_id,
        steps=latest.steps_completed,
        cause=message.cause,
        fallback_uuid=fallback.uuid if fallback else "",
        fallback_steps=steps,
    )
    return evolve(
        _with_damage(state, damage),
        checkpoint=fallback,
        steps=min(state.steps, steps),
        allocation=evolve(allocation, from_steps=min(allocation.from_steps, steps)),
    )


def clear_damage(
    state: TrialState, message: CheckpointVerified, context: StepContext
) -> TrialState:
    """Mark a damaged checkpoint as COMPLETED again. The reply is the state of the record, or "".

    The reply is "" if the trial has no record of the checkpoint. A record that is not DAMAGED stays
    unchanged. The trial may have ended. The next run starts from this checkpoint, except in two
    cases: the trial's latest checkpoint has more batches, or the trial's allocation holds slots.
    """
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    if record is None or record.state is not CheckpointState.DAMAGED:
        context.reply = "" if record is None else record.state.value
        return state
    record = dataclasses.replace(record, state=CheckpointState.COMPLETED, damage="")
    context.write_part(name, record)
    context.reply = record.state.value
    return _with_latest_checkpoint(state, record.checkpoint, context)


def _with_latest_checkpoint(
    state: TrialState, intact: CheckpointRef, context: StepContext
) -> TrialState:
    """Return the state in which the next run starts from the checkpoint `intact`.

    Return the state unchanged if the latest checkpoint has more batches, or the allocation has
    slots.
    """
    latest, allocation = state.checkpoint, state.allocation
    steps = intact.steps_completed
    if latest is not None and latest.steps_completed > steps:
        return state
    if allocation is not None and allocation.places:
        return state
    context.add_reason(f"the next run begins from checkpoint {intact.uuid} at batch {steps}")
    if allocation is not None:
        allocation = evolve(allocation, from_steps=max(allocation.from_steps, steps))
    return evolve(state, checkpoint=intact, steps=max(state.steps, steps), allocation=allocation)


def _is_load_given_up(state: TrialState, uuid: str) -> bool:
    """Return whether the trial stops trying to load a checkpoint that cannot be loaded.

    That is the case if the previous run failed to load the same checkpoint, or no restart is left.
    """
    before = state.load_failure
    has_failed = before is not None and before.uuid == uuid and before.epoch == state.epoch - 1
    return has_failed or state.restarts >= state.settings.max_restarts


def can_excuse_failure(state: TrialState, allocation: Allocation) -> bool:
    """Return whether a damaged checkpoint, from which the run started, made the run fail.

    The failure of a run that trained further in spite of the damage is not excused.
    """
    damages = state.recent_damages
    is_reported = bool(damages) and damages[-1].epoch == state.epoch
    return is_reported and state.steps <= allocation.from_steps


def _record_foreign_damage(
    state: TrialState, message: CheckpointDamageReported, context: StepContext
) -> TrialState:
    """Add the damage of another trial's checkpoint, from which this run started, to
    `recent_damages`.

    Nothing changes if the report names another checkpoint than the inherited one, or if this run
    has reported a damage already. For a warm start, the trial's id and the batches are recorded as
    0.
    """
    inherited = state.inherited_checkpoint
    if inherited is not None and inherited.uuid != message.uuid:
        return state
    if state.recent_damages and state.recent_damages[-1].epoch == state.epoch:
        return state
    source = inherited.trial_id if inherited else 0
    steps = inherited.steps_completed if inherited else 0
    damage = Damage(context.now_ms, state.epoch, message.uuid, source, steps, message.cause)
    return _with_damage(state, damage)


def _mark_damaged(message: CheckpointDamageReported, context: StepContext) -> None:
    """Mark the record of a checkpoint as DAMAGED. Do nothing unless the record is COMPLETED."""
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    if record is not None and record.state is CheckpointState.COMPLETED:
        marked = dataclasses.replace(record, state=CheckpointState.DAMAGED, damage=message.cause)
        context.write_part(name, marked)


def _find_fallback(
    damaged: CheckpointRef, fallbacks: tuple[str, ...], context: StepContext
) -> CheckpointRef | None:
    """Return the first fallback that is complete now and has no more batches than the damaged
    checkpoint.

    Return None if no fallback qualifies.
    """
    for uuid in fallbacks[:FALLBACKS_MAX]:
        record = context.part(CHECKPOINT_PARTS + uuid, CheckpointRecord)
        if record is None or record.state is not CheckpointState.COMPLETED:
            continue
        if uuid != damaged.uuid and record.checkpoint.steps_completed <= damaged.steps_completed:
            return record.checkpoint
    return None


def _with_damage(state: TrialState, damage: Damage) -> TrialState:
    """Return the state with a further recent damage. The oldest beyond DAMAGES_KEPT is dropped."""
    return evolve(state, recent_damages=(*state.recent_damages, damage)[-DAMAGES_KEPT:])
