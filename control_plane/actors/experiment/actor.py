"""The step of the experiment actor, which owns a search, the trials' summaries and the best metric.

The functions of this module choose the function that handles a message. The handlers are in the
other modules of this folder, a module for each concern.
"""

from typing import assert_never

from control_plane.actors.experiment.best_events import (
    raise_due_best_event,
    raise_final_best_event,
)
from control_plane.actors.experiment.continuation import continue_experiment
from control_plane.actors.experiment.cost_limit import apply_cost_message
from control_plane.actors.experiment.deletion import begin_deletion, finish_collection, remove_parts
from control_plane.actors.experiment.duration_limit import apply_duration_message
from control_plane.actors.experiment.events import apply_event_message, raise_status_event
from control_plane.actors.experiment.expiry import apply_expiry_due, request_expiry
from control_plane.actors.experiment.job import (
    leave_pool,
    move_to_pool,
    repair_job_row,
    write_job_row,
)
from control_plane.actors.experiment.listing import update_figures, write_listing_row
from control_plane.actors.experiment.search import apply_post, apply_suggestion, expand_backlog
from control_plane.actors.experiment.settings import change_settings, set_archived
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.status import change_status
from control_plane.actors.experiment.status_commands import apply_status_command, kill_experiment
from control_plane.actors.experiment.submission import submit_experiment
from control_plane.actors.experiment.trial_ends import apply_trial_end, count_trial_end
from control_plane.actors.experiment.trial_reports import (
    apply_discarded_metrics,
    apply_trial_report,
)
from control_plane.actors.identifiers import IdBlock
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    ClusterRestored,
    CollectionEnded,
    ContinueRequested,
    CostCheckDue,
    DeleteRequested,
    DeletionContinued,
    DurationEnded,
    ExperimentCommand,
    ExperimentMessage,
    ExperimentSubmitted,
    JobAudited,
    KillRequested,
    NoticeEnded,
    OperationsPosted,
    PauseRequested,
    PoolChanged,
    SearchContinued,
    SettingsChanged,
    TrialEnded,
    TrialLengthReached,
    TrialMetered,
    TrialMetricsDiscarded,
    TrialPlaced,
    TrialProgressReported,
    TrialSignaled,
    TrialValidationReported,
    UnarchiveRequested,
    WaitEnded,
)
from control_plane.actors.messages.experiment_events import (
    BestValidationDue,
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed


def step(
    state: ExperimentState | None, message: ExperimentMessage, context: StepContext
) -> ExperimentState | None:
    """Apply a message to the state of an experiment, and update the figures in the listing row.

    Webhooks announce a new status. An experiment that was never submitted has no state. Return None
    for every message to such an experiment except the submission. A repeated submission changes
    nothing.

    Raises:
        CommandRefused: a user's command is not allowed; the handler of the command names the code.
    """
    after = update_figures(state, _apply_message(state, message, context), context)
    after = raise_final_best_event(state, after, context)
    return raise_status_event(state, after, context)


def fallback(
    state: ExperimentState | None, message: object, context: StepContext
) -> ExperimentState | None:
    """Stop an experiment for which `step` failed, and update the figures in the listing row.

    Webhooks announce a new status. The status becomes STOPPING_ERROR, and the final ERROR at once
    if no trial is open. All open trials get the status. A deletion becomes DELETE_FAILED. An ended
    experiment stays unchanged, and a missing one stays None. A TrialEnded still counts.
    """
    after = update_figures(state, _stop_after_error(state, message, context), context)
    after = raise_final_best_event(state, after, context)
    return raise_status_event(state, after, context)


def _apply_message(
    state: ExperimentState | None, message: ExperimentMessage, context: StepContext
) -> ExperimentState | None:
    """Apply a message, without updating the figures in the listing row.

    Return None if the experiment does not exist, except for a submission.

    Raises:
        CommandRefused: a user's command is not allowed.
    """
    if isinstance(message, ExperimentSubmitted):
        context.reply = message.experiment_id
        return submit_experiment(message, context) if state is None else state
    if state is None:
        return None
    match message:
        case TrialValidationReported() | TrialProgressReported() | TrialLengthReached():
            return apply_trial_report(state, message, context)
        case TrialMetricsDiscarded():
            return apply_discarded_metrics(state, message, context)
        case TrialEnded():
            return apply_trial_end(state, message, context)
        case (
            TrialMetered()
            | CostCheckDue()
            | NoticeEnded()
            | WaitEnded()
            | TrialPlaced()
            | DurationEnded()
            | TrialSignaled()
        ):
            return _apply_resource_message(state, message, context)
        case SearchContinued():
            return expand_backlog(state, context)
        case SuggestedPoints() | SuggestionFailed():
            return apply_suggestion(state, message, context)
        case (
            CollectionEnded()
            | DeletionContinued()
            | JobAudited()
            | ClusterRestored()
            | TrialAlerted()
            | TrialUsedLittle()
            | TrialLogMatched()
            | WebhooksChanged()
            | DeadlineNear()
            | ExpiryDue()
            | BestValidationDue()
        ):
            return _apply_housekeeping(state, message, context)
        case _:
            return _apply_command(state, message, context)


def _stop_after_error(
    state: ExperimentState | None, message: object, context: StepContext
) -> ExperimentState | None:
    """Return the state of the stopped experiment, as `fallback` describes, without updating the
    figures.
    """
    if state is None:
        return None
    if state.status is Status.DELETING:
        text = f"internal error: {message_name(message)} could not be processed"
        return write_listing_row(evolve(state, status=Status.DELETE_FAILED, message=text), context)
    if state.status.is_final:
        return state
    if isinstance(message, TrialEnded):
        # The trial sends its end once. An experiment with a trial that counts as open cannot end.
        state = count_trial_end(state, message, context)
    text = f"internal error: {message_name(message)} could not be processed"
    return change_status(evolve(state, message=text), Status.STOPPING_ERROR, context)


def _apply_resource_message(
    state: ExperimentState,
    message: TrialMetered
    | CostCheckDue
    | NoticeEnded
    | WaitEnded
    | TrialPlaced
    | DurationEnded
    | TrialSignaled,
    context: StepContext,
) -> ExperimentState:
    """Apply a message about the cost, the duration, the notices, the pool or a log's signal.

    A TrialPlaced or DurationEnded may start the time of `max_duration`, or cancel the experiment at
    its end. A NoticeEnded increases the count of its outcome in `notices`. A TrialMetered or
    CostCheckDue may pause the experiment at the cost limit. A WaitEnded may move the job to another
    pool. The signal of a TrialSignaled becomes the experiment's signal.
    """
    match message:
        case NoticeEnded(outcome=outcome):
            counts = {**state.notices, outcome: state.notices.get(outcome, 0) + 1}
            return evolve(state, notices=counts)
        case WaitEnded():
            return leave_pool(state, message, context)
        case TrialSignaled(signal=signal):
            return state if state.status is Status.DELETED else evolve(state, signal=signal)
        case TrialPlaced() | DurationEnded():
            return apply_duration_message(state, message, context)
        case _:
            return apply_cost_message(state, message, context)


def _apply_housekeeping(
    state: ExperimentState,
    message: CollectionEnded
    | DeletionContinued
    | JobAudited
    | ClusterRestored
    | TrialAlerted
    | TrialUsedLittle
    | TrialLogMatched
    | WebhooksChanged
    | DeadlineNear
    | ExpiryDue
    | BestValidationDue,
    context: StepContext,
) -> ExperimentState:
    """End a collection, continue a deletion, request the deletion of expired data, repair the job
    row, or drop the reserved trial ids.

    Or apply a message about events: announce the waiting best validation, or call
    `apply_event_message`.
    """
    match message:
        case (
            TrialAlerted()
            | TrialUsedLittle()
            | TrialLogMatched()
            | WebhooksChanged()
            | DeadlineNear()
        ):
            return apply_event_message(state, message, context)
        case BestValidationDue():
            return raise_due_best_event(state, context)
        case CollectionEnded():
            return finish_collection(state, message, context)
        case DeletionContinued():
            return remove_parts(state, context)
        case ExpiryDue():
            return apply_expiry_due(state, context)
        case JobAudited():
            return repair_job_row(state, message, context)
        case ClusterRestored():
            return evolve(state, ids=IdBlock())


def _apply_command(
    state: ExperimentState, message: ExperimentCommand, context: StepContext
) -> ExperimentState:
    """Apply a user's command, and set the reply.

    Raises:
        CommandRefused: not_found; the experiment was deleted. Other refusals are those of the
            command's handler.
    """
    if state.status is Status.DELETED:
        raise CommandRefused("not_found", f"experiment {state.experiment_id} was deleted")
    match message:
        case SettingsChanged():
            return change_settings(state, message, context)
        case PoolChanged():
            return move_to_pool(state, message, context)
        case ArchiveRequested() | UnarchiveRequested():
            return set_archived(state, isinstance(message, ArchiveRequested), context)
        case DeleteRequested() | ExpiryRequested():
            return _delete_data(state, message, context)
        case ContinueRequested():
            state = continue_experiment(state, message, context)
            write_job_row(state, context)
            return write_listing_row(
                expand_backlog(state, context) if state.search.backlog else state, context
            )
        case KillRequested():
            return kill_experiment(state, context)
        case OperationsPosted(posted=posted):
            return apply_post(state, posted, context)
        case ActivateRequested() | PauseRequested() | CancelRequested():
            return apply_status_command(state, message, context)
        case _:
            assert_never(message)


def _delete_data(
    state: ExperimentState, message: DeleteRequested | ExpiryRequested, context: StepContext
) -> ExperimentState:
    """Begin to delete the experiment, or request the deletion of expired logs and metrics."""
    if isinstance(message, DeleteRequested):
        return begin_deletion(state, context)
    return request_expiry(state, message, context)
