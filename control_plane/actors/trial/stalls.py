"""The next action of a trial after an allocation ended without a failure of the training code.

Such an end uses up no restart. Consecutive ends without progress count as stalls, and a trial with
too many stalls ends in ERROR.
"""

from dataclasses import replace

from control_plane.actors.messages.trial import AllocationExited, RestartDue
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.lifecycle import (
    end_with_error,
    reconcile,
    release_and_reconcile,
    wants_slots,
)
from control_plane.actors.trial.state import Allocation, DesiredState, Loss, TrialState
from control_plane.evolve import evolve

# The most consecutive allocations without a trained batch or a counted failure. Each gave up its
# slots unasked, could not be started, or was lost on a machine that still exists.
STALLS_MAX = 20
# The delay before a start is retried doubles each time. STALLS_MAX delays last 15 minutes.
RESTART_MS_FIRST = 1_000
RESTART_MS_MAX = 60_000
LOSSES_KEPT = 5
FULL_DISK = "the machine failed: the disk of "
"""The beginning of an agent's text about a full disk (detcloud/agent/health/disk.py)."""
FULL_DISKS_MAX = 2


def judge_full_disk(state: TrialState, message: AllocationExited) -> AllocationExited:
    """Return an exit, as a failure if the trial seems to fill the disks of several machines.

    The agent counts a full disk as the machine's fault, unless the files in the trial's own folder
    fill the disk. A trial can also fill a disk elsewhere. After FULL_DISKS_MAX such losses among
    the latest losses, the exit counts as a failure of the code.
    """
    if message.reason != "lost" or not message.message.startswith(FULL_DISK):
        return message
    earlier = sum(loss.cause.startswith(FULL_DISK) for loss in state.recent_losses)
    return replace(message, reason="errored") if earlier >= FULL_DISKS_MAX else message


def reconcile_after_yield(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Release the slots of an allocation that ended by giving up the slots, and reconcile.

    No work counts as lost. An allocation that gave up its slots unasked, with work left and no
    batch trained, counts as a stall. Any other yield resets the stalls to 0. More than STALLS_MAX
    stalls end the trial in ERROR, with a TrialEnded.
    """
    worked = state.steps > allocation.from_steps
    idle = not worked and allocation.desired_state is DesiredState.RUN and wants_slots(state)
    state = evolve(state, stalls=state.stalls + 1 if idle else 0)
    if state.stalls > STALLS_MAX:
        text = f"it gave up its slots {state.stalls} times in a row without training a batch"
        return end_with_error(state, text, context)
    return release_and_reconcile(state, allocation, context, has_yielded=True)


def reconcile_after_loss(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Record a loss, release the slots, roll back to the latest checkpoint, and reconcile.

    The loss uses up no restart. A loss with the reason "lost" and no batch trained counts as a
    stall: the machine still exists. Any other loss resets the stalls to 0. More than STALLS_MAX
    stalls end the trial in ERROR, with a TrialEnded.
    """
    worked = state.steps > allocation.from_steps or message.reason != "lost"
    stalls = 0 if worked else state.stalls + 1
    state = record_loss(evolve(state, stalls=stalls), allocation, message, context)
    if stalls > STALLS_MAX:
        text = f"it was lost {stalls} times in a row without training a batch: {message.message}"
        return end_with_error(state, text, context)
    return release_and_reconcile(state, allocation, context)


def record_loss(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Add a loss to the trial's count and to `recent_losses`, and return the state.

    Only the last LOSSES_KEPT losses are kept, for users. The journal gets the cause. Slots stay
    held.
    """
    place, cause = allocation.places[message.node_rank :][:1], gang.exit_cause(message)
    context.add_reason(f"lost (no failure of the code): {cause}")
    loss = Loss(context.now_ms, place[0].agent if place else "", cause)
    recent = (*state.recent_losses, loss)[-LOSSES_KEPT:]
    return evolve(state, losses=state.losses + 1, recent_losses=recent)


def reconcile_after_failed_start(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Release the slots of an allocation that could not be started, and request slots again after a
    delay.

    A RestartDue timer ends the delay, which doubles with each stall, from RESTART_MS_FIRST to
    RESTART_MS_MAX. Each failed start counts as a stall. More than STALLS_MAX stalls end the trial
    in ERROR instead, with a TrialEnded.
    """
    stalls = state.stalls + 1
    text = message.message or "the trial could not be started"
    if stalls > STALLS_MAX:
        text = f"it could not be started {stalls} times in a row: {text}"
        return end_with_error(state, text, context)
    delay_ms = min(RESTART_MS_FIRST << (stalls - 1), RESTART_MS_MAX)
    context.set_timer(context.now_ms + delay_ms, RestartDue(state.epoch))
    context.add_reason(f"the next start is in {delay_ms} ms")
    return release_and_reconcile(
        evolve(state, stalls=stalls, message=text, awaits_restart_delay=True), allocation, context
    )


def reconcile_after_damage(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Release the slots after a damaged checkpoint failed the run, and reconcile.

    `record_damage` has chosen the checkpoint of the next run. The damage of another trial's
    checkpoint ends the trial in ERROR. Other damage counts as a stall. More than STALLS_MAX stalls
    end the trial in ERROR.
    """
    damage = state.recent_damages[-1]
    problem = f"checkpoint {damage.uuid}, from which it begins, is damaged: {damage.cause}"
    if damage.trial_id != state.trial_id:
        return end_with_error(state, problem, context)
    stalls = state.stalls + 1
    if stalls > STALLS_MAX:
        text = f"it made no progress {stalls} times in a row, at last because {problem}"
        return end_with_error(state, text, context)
    context.add_reason("started again (no failure of the code)")
    return release_and_reconcile(evolve(state, stalls=stalls), allocation, context)


def end_restart_delay(state: TrialState, message: RestartDue, context: StepContext) -> TrialState:
    """End the delay before a restart, and reconcile, which requests slots if work is left.

    Return the state unchanged if the trial waits for no delay, or the timer is of another epoch.
    """
    if not state.awaits_restart_delay or message.epoch != state.epoch:
        return state
    return reconcile(evolve(state, awaits_restart_delay=False), context)
