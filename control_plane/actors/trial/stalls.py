"""A trial's next step after an end of its allocation that is no failure of the training code.

Such ends use up no restart. Those in a row without progress are counted as stalls, so that none of
them goes on for ever.
"""

from control_plane.actors.messages.trial import AllocationExited, RestartDue
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.lifecycle import (
    end_with_error,
    release_and_reconcile,
    wants_slots,
)
from control_plane.actors.trial.state import Allocation, DesiredState, Loss, TrialState
from control_plane.evolve import evolve

# How often in a row an allocation may end without a trained batch or a counted failure: it gave up
# its slots unasked, could not be started, or vanished from a machine that is still there.
STALLS_MAX = 20
# The delay before a start is tried again doubles; STALLS_MAX of them come to 15 minutes.
RESTART_MS_FIRST = 1_000
RESTART_MS_MAX = 60_000
LOSSES_KEPT = 5


def reconcile_after_yield(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Release the slots of an allocation that gave them up; one that does so unasked, with work
    left and none done, counts as a stall.
    """
    worked = state.steps > allocation.from_steps
    idle = not worked and allocation.wish is DesiredState.RUN and wants_slots(state)
    state = evolve(state, stalls=state.stalls + 1 if idle else 0)
    if state.stalls > STALLS_MAX:
        text = f"it gave up its slots {state.stalls} times in a row without training a batch"
        return end_with_error(state, text, context)
    return release_and_reconcile(state, allocation, context)


def reconcile_after_loss(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Begin again after a loss, which is no failure unless the trial makes no progress for long."""
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
    """Record a loss, which shows users why the trial begins again."""
    place, cause = allocation.places[message.node_rank :][:1], gang.exit_cause(message)
    context.add_reason(f"lost, which is no failure: {cause}")
    loss = Loss(context.now_ms, place[0].agent if place else "", cause)
    recent = (*state.recent_losses, loss)[-LOSSES_KEPT:]
    return evolve(state, losses=state.losses + 1, recent_losses=recent)


def reconcile_after_failed_start(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Try again after a delay when the machine could not start the allocation; not for ever."""
    stalls = state.stalls + 1
    text = message.message or "the trial could not be started"
    if stalls > STALLS_MAX:
        text = f"it could not be started {stalls} times in a row: {text}"
        return end_with_error(state, text, context)
    delay_ms = min(RESTART_MS_FIRST << (stalls - 1), RESTART_MS_MAX)
    context.set_timer(context.now_ms + delay_ms, RestartDue(state.epoch))
    context.add_reason(f"it is started again in {delay_ms} ms")
    return release_and_reconcile(
        evolve(state, stalls=stalls, message=text, held_back=True), allocation, context
    )


def reconcile_after_damage(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Begin again from an older checkpoint after the run's own one was found damaged. A damaged
    checkpoint of another trial has none before it, and ends the trial.
    """
    damage = state.recent_damages[-1]
    what = f"checkpoint {damage.uuid}, from which it begins, is damaged: {damage.cause}"
    if damage.trial_id != state.trial_id:
        return end_with_error(state, what, context)
    stalls = state.stalls + 1
    if stalls > STALLS_MAX:
        text = f"it made no progress {stalls} times in a row, at last because {what}"
        return end_with_error(state, text, context)
    context.add_reason("begun again, which is no failure of its code")
    return release_and_reconcile(evolve(state, stalls=stalls), allocation, context)
