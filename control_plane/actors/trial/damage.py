"""Damaged checkpoints: the record of the damage, and the older checkpoint that takes its place.

A report of damage comes from training code, which may claim anything. So it marks a checkpoint of
its own trial alone, deletes nothing, and excuses a failure only of a run that trained no further.
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
from control_plane.actors.trial.state import Allocation, Damage, TrialState
from control_plane.evolve import evolve

DAMAGES_KEPT = 5


def record_damage(
    state: TrialState,
    allocation: Allocation,
    message: CheckpointDamageReported,
    context: StepContext,
) -> TrialState:
    """Mark the latest checkpoint as damaged, so that the next run begins from the first fallback
    that is still complete.

    A report that names another checkpoint changes nothing. A trial that has none has begun from one
    of another trial, on which no mark is set.
    """
    latest, uuid = state.checkpoint, message.uuid
    if latest is None:
        return _record_foreign_damage(state, message, context)
    if latest.uuid != uuid:
        return state
    _mark_damaged(message, context)
    instead = _find_fallback(latest, message.fallbacks, context)
    steps = instead.steps_completed if instead else 0
    place = f"checkpoint {instead.uuid} at batch {steps}" if instead else "the beginning"
    lost = latest.steps_completed - steps
    context.add_reason(f"the next run begins from {place}: {lost} batches are trained again")
    damage = Damage(
        at_ms=context.now_ms,
        epoch=state.epoch,
        uuid=uuid,
        trial_id=state.trial_id,
        steps=latest.steps_completed,
        cause=message.cause,
        instead=instead.uuid if instead else "",
        instead_steps=steps,
    )
    return evolve(
        _with_damage(state, damage),
        checkpoint=instead,
        steps=min(state.steps, steps),
        allocation=evolve(allocation, from_steps=min(allocation.from_steps, steps)),
    )


def clear_damage(
    state: TrialState, message: CheckpointVerified, context: StepContext
) -> TrialState:
    """Make a damaged checkpoint complete again, whether its trial has ended or not.

    The trial goes on from it if it is the one of the most batches and no run has begun from
    another: what a run begins from never changes under it. It is no way back from a deletion.
    """
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    if record is None or record.state is not CheckpointState.DAMAGED:
        context.reply = "" if record is None else record.state.value
        return state
    record = dataclasses.replace(record, state=CheckpointState.COMPLETED, damage="")
    context.write_part(name, record)
    context.reply = record.state.value
    return _with_latest(state, record.checkpoint, context)


def _with_latest(state: TrialState, whole: CheckpointRef, context: StepContext) -> TrialState:
    """The state in which the trial goes on from `whole`, if it may."""
    latest, allocation = state.checkpoint, state.allocation
    steps = whole.steps_completed
    if latest is not None and latest.steps_completed > steps:
        return state
    if allocation is not None and allocation.places:
        return state
    context.add_reason(f"the next run begins from checkpoint {whole.uuid} at batch {steps}")
    if allocation is not None:
        allocation = evolve(allocation, from_steps=max(allocation.from_steps, steps))
    return evolve(state, checkpoint=whole, steps=max(state.steps, steps), allocation=allocation)


def can_excuse_failure(state: TrialState, allocation: Allocation) -> bool:
    """Whether the run failed because of the checkpoint that it began from, and so is no failure of
    its code: one that trained on in spite of the damage is.
    """
    damages = state.recent_damages
    found = bool(damages) and damages[-1].epoch == state.epoch
    return found and state.steps <= allocation.from_steps


def _record_foreign_damage(
    state: TrialState, message: CheckpointDamageReported, context: StepContext
) -> TrialState:
    inherited = state.inherited
    if inherited is not None and inherited.uuid != message.uuid:
        return state
    if state.recent_damages and state.recent_damages[-1].epoch == state.epoch:
        return state
    source = inherited.trial_id if inherited else 0
    steps = inherited.steps_completed if inherited else 0
    damage = Damage(context.now_ms, state.epoch, message.uuid, source, steps, message.cause)
    return _with_damage(state, damage)


def _mark_damaged(message: CheckpointDamageReported, context: StepContext) -> None:
    name = CHECKPOINT_PARTS + message.uuid
    record = context.part(name, CheckpointRecord)
    if record is not None and record.state is CheckpointState.COMPLETED:
        marked = dataclasses.replace(record, state=CheckpointState.DAMAGED, damage=message.cause)
        context.write_part(name, marked)


def _find_fallback(
    damaged: CheckpointRef, fallbacks: tuple[str, ...], context: StepContext
) -> CheckpointRef | None:
    """The first of the fallbacks that is complete now and has no more batches than the damaged."""
    for uuid in fallbacks[:FALLBACKS_MAX]:
        record = context.part(CHECKPOINT_PARTS + uuid, CheckpointRecord)
        if record is None or record.state is not CheckpointState.COMPLETED:
            continue
        if uuid != damaged.uuid and record.checkpoint.steps_completed <= damaged.steps_completed:
            return record.checkpoint
    return None


def _with_damage(state: TrialState, damage: Damage) -> TrialState:
    return evolve(state, recent_damages=(*state.recent_damages, damage)[-DAMAGES_KEPT:])
