"""The commands that change the status: activate, pause, cancel and kill."""

from control_plane.actors.experiment.cost_limit import check_affordable
from control_plane.actors.experiment.state import ExperimentState, definition_of
from control_plane.actors.experiment.status import change_status
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    PauseRequested,
)
from control_plane.actors.records import JobKind, Status
from control_plane.actors.step import CommandRefused, StepContext

_STATUS_COMMANDS: dict[type, tuple[Status, str]] = {
    ActivateRequested: (Status.ACTIVE, "activated"),
    PauseRequested: (Status.PAUSED, "paused"),
    CancelRequested: (Status.STOPPING_CANCELED, "canceled"),
}


def apply_status_command(
    state: ExperimentState,
    message: ActivateRequested | PauseRequested | CancelRequested,
    context: StepContext,
) -> ExperimentState:
    """Activate, pause or cancel the experiment. The reply is the experiment's id.

    The open trials get the new status. The present status changes nothing. In the length era, a
    cancellation of an experiment that is stopping or has ended changes nothing either.

    Raises:
        CommandRefused: conflict; the status or the cost limit does not allow the command, or the
            experiment to pause is a command, notebook or shell.
    """
    status, verb = _STATUS_COMMANDS[type(message)]
    context.reply = state.experiment_id
    if status is state.status:
        return state
    if status is Status.PAUSED and state.kind is not JobKind.EXPERIMENT:
        raise CommandRefused(
            "conflict", f"{state.title} cannot be paused: it saves no checkpoints; kill it"
        )
    if not (state.status.is_stopping or state.status.is_final):
        if status is Status.ACTIVE:
            check_affordable(state, context)
        return change_status(state, status, context)
    if status.is_stopping and not definition_of(context).rules.cancel_needs_running:
        return state
    raise CommandRefused(
        "conflict",
        f"experiment {state.experiment_id} is {state.status} and can no longer be {verb}",
    )


def kill_experiment(state: ExperimentState, context: StepContext) -> ExperimentState:
    """Kill the experiment and all open trials. The reply is the experiment's id.

    The status becomes STOPPING_KILLED, or STOPPING_CANCELED in the step era. Without open trials,
    the experiment ends at once. An experiment that is stopping for another reason than a
    cancellation keeps its status. Its trials are then killed in the step era only. An ended
    experiment of the length era stays unchanged.

    Raises:
        CommandRefused: not_found; a step-era experiment has ended.
    """
    context.reply = state.experiment_id
    rules = definition_of(context).rules
    if state.status.is_final:
        if rules.kill_needs_live:
            text = f"experiment {state.experiment_id} has ended ({state.status})"
            raise CommandRefused("not_found", f"{text}: nothing is left to kill")
        return state
    is_more_severe = not state.status.is_stopping or state.status is Status.STOPPING_CANCELED
    status = rules.killed if is_more_severe else state.status
    forced = rules.killed is not Status.STOPPING_KILLED
    if status is state.status and not forced:
        return state
    return change_status(state, status, context, forced=forced)
