"""The experiment: owns the search, the summaries of its trials and the best metric.

ACTIVE and PAUSED change into each other; STOPPING_x becomes x when no trial is left. While it is
stopping, the search counts what happens and asks for nothing. A trial that ends twice counts once:
its summary says so. What an ended experiment can still be told lies in modules of its own.
"""

from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.experiment_continuation import continued
from control_plane.actors.experiment_deletion import collection_ended, deleted, removed
from control_plane.actors.experiment_job import audited, moved, published
from control_plane.actors.experiment_limit import check_affordable, metered
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    CollectionEnded,
    ContinueRequested,
    CostLookDue,
    DeleteRequested,
    DeletionContinued,
    ExperimentCommand,
    ExperimentMessage,
    ExperimentSubmitted,
    JobAudited,
    KillRequested,
    OperationsPosted,
    PauseRequested,
    PoolChanged,
    SearchContinued,
    SettingsChanged,
    TrialEnded,
    TrialLengthReached,
    TrialMetered,
    TrialValidated,
    UnarchiveRequested,
)
from control_plane.actors.experiment_search import (
    carried_out,
    expanded,
    searched,
    steered,
    suggested,
)
from control_plane.actors.experiment_settings import archived, changed
from control_plane.actors.experiment_state import (
    Definition,
    ExperimentState,
    SearchParts,
    definition_of,
    listed,
)
from control_plane.actors.experiment_status import finished, with_status
from control_plane.actors.experiment_summaries import (
    open_summary,
    summarise,
)
from control_plane.actors.records import Status, worst_metric
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_checkpoints import pinned
from control_plane.actors.trial_messages import (
    WorkAssigned,
)
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.method import (
    Event,
    ExitReason,
    Suggested,
    SuggestionFailed,
    TrialClosed,
    TrialExited,
    TrialMeasured,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.randomness import Generator


def step(
    state: ExperimentState | None, message: ExperimentMessage, turn: Turn
) -> ExperimentState | None:
    """Folds one message."""
    if isinstance(message, ExperimentSubmitted):
        turn.reply = message.experiment_id
        return _submitted(message, turn) if state is None else state
    if state is None:
        return None
    match message:
        case TrialValidated():
            return _validated(state, message, turn)
        case TrialLengthReached():
            return _reached(state, message, turn)
        case TrialEnded():
            return _ended(state, message, turn)
        case TrialMetered() | CostLookDue():
            return metered(state, message, turn)
        case SearchContinued():
            return expanded(state, turn)
        case Suggested() | SuggestionFailed():
            return suggested(state, message, turn)
        case CollectionEnded() | DeletionContinued() | JobAudited():
            return _tidied(state, message, turn)
        case _:
            return _commanded(state, message, turn)


def fallback(state: ExperimentState | None, message: object, turn: Turn) -> ExperimentState | None:
    """An experiment that cannot take a message ends in ERROR, its trials stopped."""
    if state is None:
        return None
    if state.status is Status.DELETING:
        text = f"internal error: {type(message).__name__} could not be processed"
        return listed(evolve(state, status=Status.DELETE_FAILED, message=text), turn)
    if state.status.final:
        return state
    if isinstance(message, TrialEnded):
        # The trial says it once, and nothing ends while it counts as open.
        state = _counted(state, message, turn)
    text = f"internal error: {type(message).__name__} could not be processed"
    return with_status(evolve(state, message=text), Status.STOPPING_ERROR, turn)


def _submitted(message: ExperimentSubmitted, turn: Turn) -> ExperimentState:
    if message.warm_start is not None:
        pinned(message.warm_start.uuid, message.experiment_id, turn)
    begun = search.begin(message.plan, SearchParts(turn))
    state = ExperimentState(
        experiment_id=message.experiment_id,
        owner=message.owner,
        name=message.name,
        metric=message.metric,
        smaller_is_better=message.settings.smaller_is_better,
        searcher=message.searcher,
        pool=message.settings.pool,
        created_ms=turn.now_ms,
        status=Status.PAUSED if message.paused else Status.ACTIVE,
        search=begun.state,
        time_metric=message.time_metric,
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
    )
    turn.write_part("definition", definition)
    generator = Generator.seeded(message.plan.seed)
    turn.write_part("generator", generator.key)
    state = carried_out(state, begun, turn)
    if begun.more:
        state = expanded(state, turn)
    # After all trials, so that the pool may hear of their requests at once.
    published(state, turn)
    return listed(state, turn)


def _tidied(
    state: ExperimentState, message: CollectionEnded | DeletionContinued | JobAudited, turn: Turn
) -> ExperimentState:
    """Takes a word about what the experiment leaves elsewhere."""
    match message:
        case CollectionEnded():
            return collection_ended(state, message, turn)
        case DeletionContinued():
            return removed(state, turn)
        case JobAudited():
            return audited(state, message, turn)


def _commanded(state: ExperimentState, message: ExperimentCommand, turn: Turn) -> ExperimentState:
    if state.status is Status.DELETED:
        raise Refused("not_found", f"experiment {state.experiment_id} was deleted")
    match message:
        case SettingsChanged():
            return changed(state, message, turn)
        case PoolChanged():
            return moved(state, message, turn)
        case ArchiveRequested() | UnarchiveRequested():
            return archived(state, isinstance(message, ArchiveRequested), turn)
        case DeleteRequested():
            return deleted(state, turn)
        case ContinueRequested():
            state = continued(state, message, turn)
            published(state, turn)
            return listed(expanded(state, turn) if state.search.backlog else state, turn)
        case KillRequested():
            return _killed(state, turn)
        case OperationsPosted(posted=posted):
            return steered(state, posted, turn)
        case ActivateRequested() | PauseRequested() | CancelRequested():
            return _directed(state, message, turn)
        case _:
            assert_never(message)


_DIRECTED: dict[type, tuple[Status, str]] = {
    ActivateRequested: (Status.ACTIVE, "activated"),
    PauseRequested: (Status.PAUSED, "paused"),
    CancelRequested: (Status.STOPPING_CANCELED, "canceled"),
}


def _directed(
    state: ExperimentState,
    message: ActivateRequested | PauseRequested | CancelRequested,
    turn: Turn,
) -> ExperimentState:
    wanted, verb = _DIRECTED[type(message)]
    turn.reply = state.experiment_id
    if wanted is state.status:
        return state
    if not (state.status.stopping or state.status.final):
        if wanted is Status.ACTIVE:
            check_affordable(state, turn)
        return with_status(state, wanted, turn)
    if wanted.stopping and not definition_of(turn).rules.cancel_needs_running:
        return state
    raise Refused(
        "conflict",
        f"experiment {state.experiment_id} is {state.status} and can no longer be {verb}",
    )


def _killed(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Stops at once what runs. Where the era has no status for that, a repeat says it again."""
    turn.reply = state.experiment_id
    rules = definition_of(turn).rules
    if state.status.final:
        if rules.kill_needs_live:
            text = f"experiment {state.experiment_id} has ended ({state.status})"
            raise Refused("not_found", f"{text}: nothing of it is left to kill")
        return state
    worse = not state.status.stopping or state.status is Status.STOPPING_CANCELED
    status = rules.killed if worse else state.status
    forced = rules.killed is not Status.STOPPING_KILLED
    if status is state.status and not forced:
        return state
    return with_status(state, status, turn, forced=forced)


def _validated(state: ExperimentState, message: TrialValidated, turn: Turn) -> ExperimentState:
    summary = open_summary(message.number, state.life, turn)
    if summary is None:
        return state
    if message.lack:
        return _lacking(state, f"trial {summary.trial_id}: {message.lack}", turn)
    metric, seen = summary.metric, message.metric
    if seen is not None and (metric is None or _better(state, seen, metric)):
        metric = seen
    units = max(summary.units, message.units)
    summarise(message.number, summary._replace(units=units, metric=metric), turn)
    if seen is not None and (state.best_metric is None or _better(state, seen, state.best_metric)):
        state = evolve(state, best_metric=seen, best_trial=summary.trial_id)
    if units > summary.units:
        state = searched(state, TrialProgressed(message.number, units - summary.units), turn)
    if message.time is None:
        return state
    worst = worst_metric(state.smaller_is_better)
    measured = TrialMeasured(message.number, message.time, worst if seen is None else seen)
    return searched(state, measured, turn)


def _reached(state: ExperimentState, message: TrialLengthReached, turn: Turn) -> ExperimentState:
    summary = open_summary(message.number, state.life, turn)
    if summary is None:
        return state
    if message.lack:
        return _lacking(state, f"trial {summary.trial_id}: {message.lack}", turn)
    reached = max(summary.reached, message.length)
    summarise(message.number, summary._replace(reached=reached), turn)
    event = TrialReached(message.number, message.length, message.metric)
    state = searched(state, event, turn)
    to = addresses.trial(summary.trial_id)
    if not message.closed and all(send.to != to for send in turn.sends):
        # The trial waits for a word: nothing for now.
        turn.send(to, WorkAssigned(None, False))
    return state


def _lacking(state: ExperimentState, text: str, turn: Turn) -> ExperimentState:
    """A search without its metric cannot go on; one that is ended already does not need it."""
    if state.status.stopping or state.status.final:
        return state
    return with_status(evolve(state, message=text), Status.STOPPING_ERROR, turn)


def _ended(state: ExperimentState, message: TrialEnded, turn: Turn) -> ExperimentState:
    summary = open_summary(message.number, state.life, turn)
    if summary is None or message.life != state.life:
        return state
    state = _counted(state, message, turn)
    event: Event
    if message.early_exit:
        reason = ExitReason(message.early_exit)
        event = TrialExited(message.number, reason, summary.units, summary.reached)
    else:
        event = TrialClosed(message.number, summary.units)
    before = state.status
    after = finished(searched(state, event, turn), turn)
    return after if after.status is before else listed(after, turn)


def _counted(state: ExperimentState, message: TrialEnded, turn: Turn) -> ExperimentState:
    """Takes note of a trial's end, once."""
    summary = open_summary(message.number, state.life, turn)
    if summary is None or message.life != state.life:
        return state
    ended = summary._replace(status=message.status, life=state.life)
    summarise(message.number, ended, turn)
    # What a trial says while it is stopped does not hide what stopped the experiment.
    why = state.message if state.status is Status.STOPPING_ERROR else ""
    return evolve(
        state,
        trials_open=state.trials_open - 1,
        trials_completed=state.trials_completed + (message.status is Status.COMPLETED),
        trials_errored=state.trials_errored + (message.status is Status.ERROR),
        message=why or message.message or state.message,
    )


def _better(state: ExperimentState, metric: float, than: float) -> bool:
    return metric < than if state.smaller_is_better else metric > than
