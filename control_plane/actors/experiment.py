"""The experiment: owns the search, the summaries of its trials and the best metric.

ACTIVE and PAUSED change into each other; STOPPING_x becomes x when no trial is left. While it is
stopping, the search counts what happens and asks for nothing. A trial that ends twice counts once:
its summary says so. What an ended experiment can still be told lies in modules of its own.
"""

from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.experiment_continuation import continued
from control_plane.actors.experiment_deletion import collected, collection_ended, deleted, removed
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    CollectionEnded,
    ContinueRequested,
    DeleteRequested,
    DeletionContinued,
    ExperimentCommand,
    ExperimentMessage,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    SearchContinued,
    SettingsChanged,
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
    UnarchiveRequested,
)
from control_plane.actors.experiment_settings import archived, changed
from control_plane.actors.experiment_state import (
    Definition,
    ExperimentState,
    SearchParts,
    definition_of,
    listed,
    settings_of,
)
from control_plane.actors.experiment_summaries import (
    add_summary,
    open_summary,
    summaries,
    summarise,
)
from control_plane.actors.identifiers import take
from control_plane.actors.records import Status, TrialSettings
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_checkpoints import pinned
from control_plane.actors.trial_messages import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.evolve import evolve
from control_plane.searchers import search
from control_plane.searchers.method import (
    Close,
    Event,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExited,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import CreateTrial, SearchStep

# Creates in one commit: each is a message row, and 100 operations is what a commit holds.
CREATE_MAX = 48


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
        case SearchContinued():
            return _expanded(state, turn)
        case CollectionEnded():
            return collection_ended(state, message, turn)
        case DeletionContinued():
            return removed(state, turn)
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
    return _with_status(evolve(state, message=text), Status.STOPPING_ERROR, turn)


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
    )
    turn.write_part("definition", definition)
    generator = Generator.seeded(message.plan.seed)
    turn.write_part("generator", generator.key)
    state = _carried_out(state, begun, turn)
    if begun.more:
        state = _expanded(state, turn)
    return listed(state, turn)


def _commanded(state: ExperimentState, message: ExperimentCommand, turn: Turn) -> ExperimentState:
    if state.status is Status.DELETED:
        raise Refused("not_found", f"experiment {state.experiment_id} was deleted")
    match message:
        case SettingsChanged():
            return changed(state, message, turn)
        case ArchiveRequested() | UnarchiveRequested():
            return archived(state, isinstance(message, ArchiveRequested), turn)
        case DeleteRequested():
            return deleted(state, turn)
        case ContinueRequested():
            state = continued(state, message, turn)
            return listed(_expanded(state, turn) if state.search.backlog else state, turn)
        case KillRequested():
            return _killed(state, turn)
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
        return _with_status(state, wanted, turn)
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
    return _with_status(state, status, turn, forced=forced)


def _with_status(
    state: ExperimentState, status: Status, turn: Turn, *, forced: bool = False
) -> ExperimentState:
    """Takes a status, tells every open trial, and ends at once if there is none."""
    turn.because(f"{state.status} to {status}")
    if state.trials_open:
        for summary in summaries(state.trials, turn):
            if summary.is_open(state.life):
                to = addresses.trial(summary.trial_id)
                turn.send(to, ExperimentStatusChanged(status, forced))
    return listed(_finished(evolve(state, status=status), turn), turn)


_FINAL = {
    Status.STOPPING_COMPLETED: Status.COMPLETED,
    Status.STOPPING_CANCELED: Status.CANCELED,
    Status.STOPPING_KILLED: Status.CANCELED,
    Status.STOPPING_ERROR: Status.ERROR,
}


def _finished(state: ExperimentState, turn: Turn) -> ExperimentState:
    final = _FINAL.get(state.status)
    if final is None or state.trials_open:
        return state
    turn.because(f"{state.status} to {final}: no trial is left")
    progress = 1.0 if final is Status.COMPLETED else state.progress
    if definition_of(turn).rules.progress_cleared:
        progress = None
    state = evolve(state, status=final, ended_ms=turn.now_ms, progress=progress)
    return collected(state, turn)


def _expanded(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Creates the next trials of the search's backlog."""
    if state.status.stopping or state.status.final:
        return state
    generator = _generator(state, turn)
    key = generator.key
    plan = definition_of(turn).plan
    parts = SearchParts(turn)
    expanded = search.expand(plan, state.search, generator, CREATE_MAX, parts)
    if expanded.more:
        turn.send(turn.address, SearchContinued())
    return _carried_out(_kept(state, generator, key, turn), expanded, turn)


def _searched(state: ExperimentState, event: Event, turn: Turn) -> ExperimentState:
    """Hands an event to the search and carries out its operations; while the experiment is
    stopping, the search only counts.
    """
    if state.status.stopping or state.status.final:
        return evolve(state, search=search.noted(state.search, event))
    generator = _generator(state, turn)
    key = generator.key
    plan, parts = definition_of(turn).plan, SearchParts(turn)
    waiting = search.has_more(state.search)
    found = search.handle(plan, state.search, generator, event, CREATE_MAX, parts)
    if found.more and not waiting:
        turn.send(turn.address, SearchContinued())
    return _carried_out(_kept(state, generator, key, turn), found, turn)


def _kept(state: ExperimentState, generator: Generator, key: bytes, turn: Turn) -> ExperimentState:
    # The 2,496 bytes of the generator change once in 624 draws; its position is in the head.
    if generator.key != key:
        turn.write_part("generator", generator.key)
    return state


def _carried_out(state: ExperimentState, found: SearchStep, turn: Turn) -> ExperimentState:
    """Turns the search's operations into messages to trials."""
    definition = definition_of(turn)
    progress = state.progress
    if not found.state.shutdown:
        # A search that is shut down is over, which is no progress where it failed.
        progress = max(progress or 0.0, search.progress(definition.plan, found.state))
    state = evolve(state, search=found.state, progress=progress)
    creates = [op for op in found.operations if isinstance(op, CreateTrial)]
    if creates:
        state = _created(state, creates, definition.settings, turn)
    work: dict[int, WorkAssigned] = {}
    ending: Status | None = None
    for operation in found.operations:
        match operation:
            case TrainTo(trial, length):
                work[trial] = WorkAssigned(length, False)
            case Close(trial):
                work[trial] = replace(work.get(trial, WorkAssigned(None, True)), closed=True)
            case Shutdown():
                ending = _ending(operation)
            case CreateTrial():
                pass
    for number, assigned in work.items():
        summary = open_summary(number, state.life, turn)
        if summary is not None:
            turn.send(addresses.trial(summary.trial_id), assigned)
    return state if ending is None else _with_status(state, ending, turn)


def _ending(shutdown: Shutdown) -> Status:
    if shutdown.failure:
        return Status.STOPPING_ERROR
    return Status.STOPPING_CANCELED if shutdown.cancel else Status.STOPPING_COMPLETED


def _created(
    state: ExperimentState, creates: list[CreateTrial], settings: TrialSettings, turn: Turn
) -> ExperimentState:
    ids, trial_ids = take("trial", state.ids, len(creates), turn)
    max_slots = settings_of(turn).max_slots
    if max_slots != settings.max_slots:
        settings = replace(settings, max_slots=max_slots)
    for operation, trial_id in zip(creates, trial_ids, strict=True):
        add_summary(operation.trial, trial_id, turn)
        created = TrialCreated(
            trial_id=trial_id,
            experiment_id=state.experiment_id,
            number=operation.trial,
            request_id=operation.request_id,
            hparams=operation.hparams,
            seed=operation.seed,
            length=operation.length,
            closed=operation.closed,
            experiment_status=state.status,
            settings=settings,
            life=state.life,
        )
        turn.send(addresses.trial(trial_id), created)
    return evolve(
        state,
        ids=ids,
        trials=state.trials + len(creates),
        trials_open=state.trials_open + len(creates),
    )


def _validated(state: ExperimentState, message: TrialValidated, turn: Turn) -> ExperimentState:
    summary = open_summary(message.number, state.life, turn)
    if summary is None:
        return state
    metric, seen = summary.metric, message.metric
    if seen is not None and (metric is None or _better(state, seen, metric)):
        metric = seen
    units = max(summary.units, message.units)
    summarise(message.number, summary._replace(units=units, metric=metric), turn)
    if seen is not None and (state.best_metric is None or _better(state, seen, state.best_metric)):
        state = evolve(state, best_metric=seen, best_trial=summary.trial_id)
    if units == summary.units:
        return state
    return _searched(state, TrialProgressed(message.number, units - summary.units), turn)


def _reached(state: ExperimentState, message: TrialLengthReached, turn: Turn) -> ExperimentState:
    summary = open_summary(message.number, state.life, turn)
    if summary is None:
        return state
    if message.lack:
        return _lacking(state, f"trial {summary.trial_id}: {message.lack}", turn)
    reached = max(summary.reached, message.length)
    summarise(message.number, summary._replace(reached=reached), turn)
    event = TrialReached(message.number, message.length, message.metric)
    state = _searched(state, event, turn)
    to = addresses.trial(summary.trial_id)
    if not message.closed and all(send.to != to for send in turn.sends):
        # The trial waits for a word: nothing for now.
        turn.send(to, WorkAssigned(None, False))
    return state


def _lacking(state: ExperimentState, text: str, turn: Turn) -> ExperimentState:
    """A search without its metric cannot go on; one that is ended already does not need it."""
    if state.status.stopping or state.status.final:
        return state
    return _with_status(evolve(state, message=text), Status.STOPPING_ERROR, turn)


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
    after = _finished(_searched(state, event, turn), turn)
    return after if after.status is before else listed(after, turn)


def _counted(state: ExperimentState, message: TrialEnded, turn: Turn) -> ExperimentState:
    """Takes note of a trial's end, once."""
    summary = open_summary(message.number, state.life, turn)
    if summary is None or message.life != state.life:
        return state
    ended = summary._replace(status=message.status, life=state.life)
    summarise(message.number, ended, turn)
    return evolve(
        state,
        trials_open=state.trials_open - 1,
        trials_completed=state.trials_completed + (message.status is Status.COMPLETED),
        trials_errored=state.trials_errored + (message.status is Status.ERROR),
        message=message.message or state.message,
    )


def _better(state: ExperimentState, metric: float, than: float) -> bool:
    return metric < than if state.smaller_is_better else metric > than


def _generator(state: ExperimentState, turn: Turn) -> Generator:
    key = turn.part("generator", bytes)
    assert key is not None
    return Generator.restored(key, state.search.position)
