"""The step of the experiment actor, which owns a search, the trials' summaries and the best metric.

While the experiment is stopping, the search only counts events. A trial's end counts once, since
the summary records it. Most commands are in other modules of this folder: continuation.py,
deletion.py, job.py, settings.py and cost_limit.py.
"""

from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.experiment.continuation import continue_after_end, continue_experiment
from control_plane.actors.experiment.cost_limit import apply_cost_message, check_affordable
from control_plane.actors.experiment.deletion import begin_deletion, finish_collection, remove_parts
from control_plane.actors.experiment.job import (
    begin_new_round,
    leave_pool,
    move_to_pool,
    repair_job_row,
    write_job_row,
)
from control_plane.actors.experiment.listing import update_figures, write_listing_row
from control_plane.actors.experiment.refusals import update_refusal_message
from control_plane.actors.experiment.search import (
    apply_event,
    apply_operations,
    apply_post,
    apply_suggestion,
    expand_backlog,
)
from control_plane.actors.experiment.settings import change_settings, set_archived
from control_plane.actors.experiment.state import (
    Definition,
    ExperimentState,
    SearchParts,
    definition_of,
)
from control_plane.actors.experiment.status import change_status, finish_if_no_trial_open
from control_plane.actors.experiment.trial_summaries import (
    open_summary,
    replace_summary,
    summaries,
    summary_of,
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
    TrialProgressReported,
    TrialValidationReported,
    UnarchiveRequested,
    WaitEnded,
)
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.messages.trial import (
    WorkAssigned,
)
from control_plane.actors.pins import add_pin
from control_plane.actors.pool_moves import PoolMoves
from control_plane.actors.records import JobKind, Status, worst_metric
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.searchers import method, search
from control_plane.searchers.method import Event, ExitReason, SuggestedPoints, SuggestionFailed
from control_plane.searchers.randomness import Generator


def step(
    state: ExperimentState | None, message: ExperimentMessage, context: StepContext
) -> ExperimentState | None:
    """Apply one message to the state of an experiment, and update the listing row's figures.

    An experiment that was never submitted has no state. Return None for every message to such an
    experiment except the submission.
    """
    return update_figures(state, _apply_message(state, message, context), context)


def fallback(
    state: ExperimentState | None, message: object, context: StepContext
) -> ExperimentState | None:
    """Stop an experiment for which `step` failed, and update the listing row's figures.

    The status becomes STOPPING_ERROR, and the final ERROR at once if no trial is open. A deletion
    becomes DELETE_FAILED, and an ended experiment stays unchanged. A TrialEnded still counts.
    """
    return update_figures(state, _stop_after_error(state, message, context), context)


def _apply_message(
    state: ExperimentState | None, message: ExperimentMessage, context: StepContext
) -> ExperimentState | None:
    """Apply one message, without updating the listing row's figures."""
    if isinstance(message, ExperimentSubmitted):
        context.reply = message.experiment_id
        return _submit(message, context) if state is None else state
    if state is None:
        return None
    match message:
        case TrialValidationReported() | TrialProgressReported() | TrialLengthReached():
            return _apply_trial_report(state, message, context)
        case TrialMetricsDiscarded():
            return _apply_discarded_metrics(state, message, context)
        case TrialEnded():
            return _apply_trial_end(state, message, context)
        case TrialMetered() | CostCheckDue() | NoticeEnded() | WaitEnded():
            return _apply_resource_message(state, message, context)
        case SearchContinued():
            return expand_backlog(state, context)
        case SuggestedPoints() | SuggestionFailed():
            return apply_suggestion(state, message, context)
        case CollectionEnded() | DeletionContinued() | JobAudited() | ClusterRestored():
            return _apply_housekeeping(state, message, context)
        case _:
            return _apply_command(state, message, context)


def _stop_after_error(
    state: ExperimentState | None, message: object, context: StepContext
) -> ExperimentState | None:
    """Return the state of a stopped experiment, without updating the listing row's figures."""
    if state is None:
        return None
    if state.status is Status.DELETING:
        text = f"internal error: {message_name(message)} could not be processed"
        return write_listing_row(evolve(state, status=Status.DELETE_FAILED, message=text), context)
    if state.status.is_final:
        return state
    if isinstance(message, TrialEnded):
        # The trial sends its end once. An experiment with a trial that counts as open cannot end.
        state = _count_trial_end(state, message, context)
    text = f"internal error: {message_name(message)} could not be processed"
    return change_status(evolve(state, message=text), Status.STOPPING_ERROR, context)


def _submit(message: ExperimentSubmitted, context: StepContext) -> ExperimentState:
    """Create the experiment's state and parts, and the first trials of the search."""
    if message.warm_start is not None:
        add_pin(message.warm_start.uuid, message.experiment_id, context)
    begun = search.begin_search(message.plan, SearchParts(context))
    state = ExperimentState(
        experiment_id=message.experiment_id,
        owner=message.owner,
        name=message.name,
        metric=message.metric,
        smaller_is_better=message.settings.smaller_is_better,
        searcher=message.searcher,
        pool=message.settings.pool,
        created_ms=context.now_ms,
        status=Status.PAUSED if message.paused else Status.ACTIVE,
        search=begun.state,
        time_metric=message.time_metric,
        is_open_ended=message.plan.method.max_length == method.ENDLESS,
        counts_epochs=message.settings.lengths.counts_epochs,
        pool_moves=None if message.pools is None else PoolMoves(),
        kind=message.kind,
        listing_has_figures=message.listing_has_figures,
        has_growing_id_blocks=message.has_growing_id_blocks,
    )
    definition = Definition(
        plan=message.plan,
        settings=message.settings,
        config=message.config,
        code_sha256=message.code_sha256,
        description=message.description,
        labels=message.labels,
        job_id=message.job_id,
        test_mode=message.test_mode,
        retention=message.retention,
        warm_start=message.warm_start,
        rules=message.rules,
        job=message.job,
        pools=message.pools,
        workspace=message.workspace,
        project=message.project,
    )
    context.write_part("definition", definition)
    generator = Generator.from_seed(message.plan.seed)
    context.write_part("generator", generator.key)
    state = apply_operations(state, begun, context)
    if begun.more:
        state = expand_backlog(state, context)
    # The job row follows the trials, so that the pool can read their requests immediately.
    write_job_row(state, context)
    return write_listing_row(state, context)


def _apply_resource_message(
    state: ExperimentState,
    message: TrialMetered | CostCheckDue | NoticeEnded | WaitEnded,
    context: StepContext,
) -> ExperimentState:
    """Apply a message about the cost, the interruption notices or the pool of the experiment."""
    match message:
        case NoticeEnded(outcome=outcome):
            counts = {**state.notices, outcome: state.notices.get(outcome, 0) + 1}
            return evolve(state, notices=counts)
        case WaitEnded():
            return leave_pool(state, message, context)
        case _:
            return apply_cost_message(state, message, context)


def _apply_housekeeping(
    state: ExperimentState,
    message: CollectionEnded | DeletionContinued | JobAudited | ClusterRestored,
    context: StepContext,
) -> ExperimentState:
    """End a collection, continue a deletion, repair the job row, or discard the reserved ids."""
    match message:
        case CollectionEnded():
            return finish_collection(state, message, context)
        case DeletionContinued():
            return remove_parts(state, context)
        case JobAudited():
            return repair_job_row(state, message, context)
        case ClusterRestored():
            return evolve(state, ids=IdBlock())


def _apply_command(
    state: ExperimentState, message: ExperimentCommand, context: StepContext
) -> ExperimentState:
    """Apply a user's command. A deleted experiment refuses every command as not found."""
    if state.status is Status.DELETED:
        raise CommandRefused("not_found", f"experiment {state.experiment_id} was deleted")
    match message:
        case SettingsChanged():
            return change_settings(state, message, context)
        case PoolChanged():
            return move_to_pool(state, message, context)
        case ArchiveRequested() | UnarchiveRequested():
            return set_archived(state, isinstance(message, ArchiveRequested), context)
        case DeleteRequested():
            return begin_deletion(state, context)
        case ContinueRequested():
            state = continue_experiment(state, message, context)
            write_job_row(state, context)
            return write_listing_row(
                expand_backlog(state, context) if state.search.backlog else state, context
            )
        case KillRequested():
            return _kill(state, context)
        case OperationsPosted(posted=posted):
            return apply_post(state, posted, context)
        case ActivateRequested() | PauseRequested() | CancelRequested():
            return _apply_status_command(state, message, context)
        case _:
            assert_never(message)


_STATUS_COMMANDS: dict[type, tuple[Status, str]] = {
    ActivateRequested: (Status.ACTIVE, "activated"),
    PauseRequested: (Status.PAUSED, "paused"),
    CancelRequested: (Status.STOPPING_CANCELED, "canceled"),
}


def _apply_status_command(
    state: ExperimentState,
    message: ActivateRequested | PauseRequested | CancelRequested,
    context: StepContext,
) -> ExperimentState:
    """Activate, pause or cancel the experiment. The reply is the experiment's id.

    Raises:
        CommandRefused: conflict; the status, the kind or the cost limit does not allow the command.
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


def _kill(state: ExperimentState, context: StepContext) -> ExperimentState:
    """End the experiment immediately. The reply is the experiment's id.

    Step-era experiments have no separate status for kills, so a repeated kill notifies the trials
    again.

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


def _apply_trial_report(
    state: ExperimentState,
    message: TrialValidationReported | TrialProgressReported | TrialLengthReached,
    context: StepContext,
) -> ExperimentState:
    """Apply a report of a trial. The report also shows that the job has run in its pool."""
    state = begin_new_round(state, context)
    match message:
        case TrialValidationReported():
            return _apply_validation(state, message, context)
        case TrialProgressReported():
            return _apply_progress(state, message, context)
        case TrialLengthReached():
            return _apply_length_reached(state, message, context)


def _apply_validation(
    state: ExperimentState, message: TrialValidationReported, context: StepContext
) -> ExperimentState:
    """Record a validation in the summary and the best metric, and pass events to the search."""
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None:
        return state
    if message.missing_metric_reason:
        return _end_without_metric(
            state, f"trial {summary.trial_id}: {message.missing_metric_reason}", context
        )
    best, metric = summary.metric, message.metric
    if metric is not None and (best is None or _is_better(state, metric, best)):
        best = metric
    units = max(summary.units, message.units)
    replace_summary(message.number, summary._replace(units=units, metric=best), context)
    if metric is not None and (
        state.best_metric is None or _is_better(state, metric, state.best_metric)
    ):
        state = evolve(state, best_metric=metric, best_trial=summary.trial_id)
    if units > summary.units:
        state = apply_event(
            state, method.TrialProgressed(message.number, units - summary.units), context
        )
    if message.time is None:
        return state
    if metric is None:
        metric = worst_metric(state.smaller_is_better)
    event = method.TrialValidationReported(message.number, message.time, metric)
    return apply_event(state, event, context)


def _apply_discarded_metrics(
    state: ExperimentState, message: TrialMetricsDiscarded, context: StepContext
) -> ExperimentState:
    """Replace a trial's best metric.

    If the trial was the experiment's best, compare all trials again.
    """
    summary = summary_of(message.number, context)
    if summary is None or summary.metric == message.best:
        return state
    replace_summary(message.number, summary._replace(metric=message.best), context)
    if state.best_trial != summary.trial_id:
        return state
    sign = 1 if state.smaller_is_better else -1
    measured = (
        (sign * trial.metric, trial)
        for trial in summaries(state.trials, context)
        if trial.metric is not None
    )
    _, best = min(measured, key=lambda pair: pair[0], default=(0.0, None))
    return evolve(
        state,
        best_metric=best.metric if best else None,
        best_trial=best.trial_id if best else None,
    )


def _apply_progress(
    state: ExperimentState, message: TrialProgressReported, context: StepContext
) -> ExperimentState:
    """Record a trial's progress.

    Pass the progress to the search if batches do not measure the training.
    """
    summary = open_summary(message.number, state.run_generation, context)
    units = message.share if message.units is None else message.units
    is_used = state.is_open_ended or state.counts_epochs
    if summary is None or units <= summary.units or not is_used:
        return state
    replace_summary(message.number, summary._replace(units=units), context)
    event = method.TrialProgressed(message.number, units - summary.units)
    return apply_event(state, event, context)


def _apply_length_reached(
    state: ExperimentState, message: TrialLengthReached, context: StepContext
) -> ExperimentState:
    """Pass a reached length to the search. Tell a trial without further work to wait."""
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None:
        return state
    if message.missing_metric_reason:
        return _end_without_metric(
            state, f"trial {summary.trial_id}: {message.missing_metric_reason}", context
        )
    reached = max(summary.reached, message.length)
    replace_summary(message.number, summary._replace(reached=reached), context)
    event = method.TrialLengthReached(message.number, message.length, message.metric, message.value)
    state = apply_event(state, event, context)
    to = addresses.trial(summary.trial_id)
    if not message.closed and all(send.to != to for send in context.sends):
        # The search assigned no work, so the trial is told to wait.
        context.send(to, WorkAssigned(None, False))
    return state


def _end_without_metric(state: ExperimentState, text: str, context: StepContext) -> ExperimentState:
    """Stop the experiment with STOPPING_ERROR because the search has no metric.

    An experiment that is stopping or has ended stays unchanged.
    """
    if state.status.is_stopping or state.status.is_final:
        return state
    return change_status(evolve(state, message=text), Status.STOPPING_ERROR, context)


def _apply_trial_end(
    state: ExperimentState, message: TrialEnded, context: StepContext
) -> ExperimentState:
    """Count a trial's end, pass it to the search, and end the experiment if no trial is open."""
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None or message.run_generation != state.run_generation:
        return state
    state = _count_trial_end(state, message, context)
    event: Event
    if message.early_exit:
        reason = ExitReason(message.early_exit)
        event = method.TrialExitedEarly(message.number, reason, summary.units, summary.reached)
    else:
        event = method.TrialClosed(message.number, summary.units)
    before = state.status
    is_limited = state.first_waiting_trial >= 0 and not (before.is_stopping or before.is_final)
    after = (continue_after_end if is_limited else apply_event)(state, event, context)
    after = update_refusal_message(after, context)
    after = finish_if_no_trial_open(after, context)
    return after if after.status is before else write_listing_row(after, context)


def _count_trial_end(
    state: ExperimentState, message: TrialEnded, context: StepContext
) -> ExperimentState:
    """Count a trial's end in the summary and the head. A repeated end changes nothing."""
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None or message.run_generation != state.run_generation:
        return state
    ended = summary._replace(status=message.status, run_generation=state.run_generation)
    replace_summary(message.number, ended, context)
    # The message of a stopped trial does not replace the reason that stopped the experiment.
    reason = state.message if state.status is Status.STOPPING_ERROR else ""
    return evolve(
        state,
        trials_open=state.trials_open - 1,
        trials_completed=state.trials_completed + (message.status is Status.COMPLETED),
        trials_errored=state.trials_errored + (message.status is Status.ERROR),
        message=reason or message.message or state.message,
    )


def _is_better(state: ExperimentState, metric: float, than: float) -> bool:
    """Return whether `metric` is better than `than`."""
    return metric < than if state.smaller_is_better else metric > than
