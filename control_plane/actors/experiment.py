"""The experiment: owns the search, the summaries of its trials and the best metric.

ACTIVE and PAUSED change into each other; STOPPING_x becomes x when no trial is left. The search's
operations are ignored while stopping. A trial that ends twice counts once: its summary says so.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never

from control_plane.actors import addresses
from control_plane.actors.identifiers import IdBlock, take
from control_plane.actors.messages import (
    ActivateRequested,
    CancelRequested,
    ExperimentMessage,
    ExperimentStatusChanged,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    SearchContinued,
    Status,
    TrialCreated,
    TrialEnded,
    TrialLengthReached,
    TrialSettings,
    TrialValidated,
    WorkAssigned,
)
from control_plane.actors.step import Refused, Turn
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
from control_plane.searchers.search import CreateTrial, SearchPlan, SearchState, SearchStep

# Creates in one commit: each is a message row, and 100 operations is what a commit holds.
CREATE_MAX = 48
SUMMARIES_PER_PART = 64
LISTING = "experiments"


@dataclass(frozen=True, slots=True)
class Definition:
    """Part `definition`, written once."""

    plan: SearchPlan
    settings: TrialSettings
    config: str
    code_sha256: str
    description: str
    labels: tuple[str, ...]
    job_id: str
    test_mode: bool


class TrialSummary(NamedTuple):
    """One trial as its experiment knows it. `status` is "" while open; `units` as last reported."""

    trial_id: int
    status: str
    units: float
    metric: float | None


@dataclass(frozen=True, slots=True)
class Summaries:
    """Part `trials/K`: the trials numbered from K * SUMMARIES_PER_PART on."""

    trials: tuple[TrialSummary, ...] = ()


@dataclass(frozen=True)
class ExperimentState:
    """The head. `trials` were created, of which `trials_open` have not ended."""

    experiment_id: int
    owner: str
    name: str
    metric: str
    smaller_is_better: bool
    searcher: str
    pool: str
    created_ms: int
    status: Status
    search: SearchState
    ids: IdBlock = field(default_factory=IdBlock)
    trials: int = 0
    trials_open: int = 0
    trials_completed: int = 0
    trials_errored: int = 0
    progress: float = 0.0
    best_metric: float | None = None
    best_trial: int | None = None
    ended_ms: int | None = None
    message: str = ""


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
        case ActivateRequested() | PauseRequested() | CancelRequested() | KillRequested():
            return _commanded(state, message, turn)
        case SearchContinued():
            return _continued(state, turn)
        case TrialValidated():
            return _validated(state, message, turn)
        case TrialLengthReached():
            return _reached(state, message, turn)
        case TrialEnded():
            return _ended(state, message, turn)
        case _:
            assert_never(message)


def fallback(state: ExperimentState | None, message: object, turn: Turn) -> ExperimentState | None:
    """An experiment that cannot take a message ends in ERROR, its trials stopped."""
    if state is None or state.status.final:
        return state
    if isinstance(message, TrialEnded):
        # The trial says it once, and nothing ends while it counts as open.
        state = _counted(state, message, turn)
    text = f"internal error: {type(message).__name__} could not be processed"
    return _with_status(evolve(state, message=text), Status.STOPPING_ERROR, turn)


def _submitted(message: ExperimentSubmitted, turn: Turn) -> ExperimentState:
    begun = search.begin(message.plan)
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
    )
    turn.write_part("definition", definition)
    generator = Generator.seeded(message.plan.seed)
    turn.write_part("generator", generator.key)
    state = _carried_out(state, begun, turn)
    if begun.more:
        state = _continued(state, turn)
    return _listed(state, turn)


_COMMANDED: dict[type, Status] = {
    ActivateRequested: Status.ACTIVE,
    PauseRequested: Status.PAUSED,
    CancelRequested: Status.STOPPING_CANCELED,
    KillRequested: Status.STOPPING_KILLED,
}


def _commanded(state: ExperimentState, message: object, turn: Turn) -> ExperimentState:
    wanted = _COMMANDED[type(message)]
    turn.reply = state.experiment_id
    ending = state.status.stopping or state.status.final
    if wanted is state.status:
        return state
    if ending and not wanted.stopping:
        verb = "activated" if wanted is Status.ACTIVE else "paused"
        raise Refused(
            "conflict",
            f"experiment {state.experiment_id} is {state.status} and can no longer be {verb}",
        )
    if ending and (state.status, wanted) != (Status.STOPPING_CANCELED, Status.STOPPING_KILLED):
        return state
    return _with_status(state, wanted, turn)


def _with_status(state: ExperimentState, status: Status, turn: Turn) -> ExperimentState:
    """Takes a status, tells every open trial, and ends at once if there is none."""
    turn.because(f"{state.status} to {status}")
    for summary in _open_trials(state, turn):
        turn.send(addresses.trial(summary.trial_id), ExperimentStatusChanged(status))
    return _listed(_finished(evolve(state, status=status), turn), turn)


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
    return evolve(state, status=final, ended_ms=turn.now_ms, progress=progress)


def _continued(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Creates the next trials of the search's backlog."""
    if state.status.stopping or state.status.final:
        return state
    generator = _generator(state, turn)
    key = generator.key
    plan = _definition(turn).plan
    expanded = search.expand(plan, state.search, generator, CREATE_MAX)
    if expanded.more:
        turn.send(turn.address, SearchContinued())
    return _carried_out(_kept(state, generator, key, turn), expanded, turn)


def _searched(state: ExperimentState, event: Event, turn: Turn) -> ExperimentState:
    """Hands an event to the search and carries out its operations, unless the experiment is
    stopping.
    """
    if state.status.stopping or state.status.final:
        return state
    generator = _generator(state, turn)
    key = generator.key
    waiting = bool(state.search.backlog)
    found = search.handle(_definition(turn).plan, state.search, generator, event, CREATE_MAX)
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
    definition = _definition(turn)
    progress = state.progress
    if not found.state.shutdown:
        # A search that is shut down is over, which is no progress where it failed.
        progress = max(progress, search.progress(definition.plan, found.state))
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
            case Shutdown(failure):
                ending = Status.STOPPING_ERROR if failure else Status.STOPPING_COMPLETED
            case CreateTrial():
                pass
    for number, assigned in work.items():
        summary = _summary(number, turn)
        if summary is not None and not summary.status:
            turn.send(addresses.trial(summary.trial_id), assigned)
    return state if ending is None else _with_status(state, ending, turn)


def _created(
    state: ExperimentState, creates: list[CreateTrial], settings: TrialSettings, turn: Turn
) -> ExperimentState:
    ids, trial_ids = take("trial", state.ids, len(creates), turn)
    for operation, trial_id in zip(creates, trial_ids, strict=True):
        name = f"trials/{operation.trial // SUMMARIES_PER_PART}"
        known = turn.part(name, Summaries) or Summaries()
        summary = TrialSummary(trial_id, "", 0.0, None)
        turn.write_part(name, Summaries((*known.trials, summary)))
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
        )
        turn.send(addresses.trial(trial_id), created)
    return evolve(
        state,
        ids=ids,
        trials=state.trials + len(creates),
        trials_open=state.trials_open + len(creates),
    )


def _validated(state: ExperimentState, message: TrialValidated, turn: Turn) -> ExperimentState:
    summary = _summary(message.number, turn)
    if summary is None or summary.status:
        return state
    metric, seen = summary.metric, message.metric
    if seen is not None and (metric is None or _better(state, seen, metric)):
        metric = seen
    units = max(summary.units, message.units)
    _summarise(message.number, summary._replace(units=units, metric=metric), turn)
    if seen is not None and (state.best_metric is None or _better(state, seen, state.best_metric)):
        state = evolve(state, best_metric=seen, best_trial=summary.trial_id)
    if units == summary.units:
        return state
    return _searched(state, TrialProgressed(message.number, units - summary.units), turn)


def _reached(state: ExperimentState, message: TrialLengthReached, turn: Turn) -> ExperimentState:
    summary = _summary(message.number, turn)
    if summary is None or summary.status:
        return state
    event = TrialReached(message.number, message.length, message.metric)
    state = _searched(state, event, turn)
    to = addresses.trial(summary.trial_id)
    if not message.closed and all(send.to != to for send in turn.sends):
        # The trial waits for a word: nothing for now.
        turn.send(to, WorkAssigned(None, False))
    return state


def _ended(state: ExperimentState, message: TrialEnded, turn: Turn) -> ExperimentState:
    summary = _summary(message.number, turn)
    if summary is None or summary.status:
        return state
    state = _counted(state, message, turn)
    event: Event
    if message.early_exit:
        event = TrialExited(message.number, ExitReason(message.early_exit), summary.units)
    else:
        event = TrialClosed(message.number, summary.units)
    before = state.status
    after = _finished(_searched(state, event, turn), turn)
    return after if after.status is before else _listed(after, turn)


def _counted(state: ExperimentState, message: TrialEnded, turn: Turn) -> ExperimentState:
    """Takes note of a trial's end, once."""
    summary = _summary(message.number, turn)
    if summary is None or summary.status:
        return state
    _summarise(message.number, summary._replace(status=message.status), turn)
    return evolve(
        state,
        trials_open=state.trials_open - 1,
        trials_completed=state.trials_completed + (message.status is Status.COMPLETED),
        trials_errored=state.trials_errored + (message.status is Status.ERROR),
        message=message.message or state.message,
    )


def _better(state: ExperimentState, metric: float, than: float) -> bool:
    return metric < than if state.smaller_is_better else metric > than


def _definition(turn: Turn) -> Definition:
    found = turn.part("definition", Definition)
    assert found is not None
    return found


def _generator(state: ExperimentState, turn: Turn) -> Generator:
    key = turn.part("generator", bytes)
    assert key is not None
    return Generator.restored(key, state.search.position)


def _summary(number: int, turn: Turn) -> TrialSummary | None:
    part = turn.part(f"trials/{number // SUMMARIES_PER_PART}", Summaries)
    place = number % SUMMARIES_PER_PART
    return part.trials[place] if part and 0 <= place < len(part.trials) else None


def _summarise(number: int, summary: TrialSummary, turn: Turn) -> None:
    name = f"trials/{number // SUMMARIES_PER_PART}"
    part = turn.part(name, Summaries)
    assert part is not None
    place = number % SUMMARIES_PER_PART
    trials = (*part.trials[:place], summary, *part.trials[place + 1 :])
    turn.write_part(name, Summaries(trials))


def _open_trials(state: ExperimentState, turn: Turn) -> list[TrialSummary]:
    if not state.trials_open:
        return []
    found: list[TrialSummary] = []
    for index in range((state.trials - 1) // SUMMARIES_PER_PART + 1):
        part = turn.part(f"trials/{index}", Summaries)
        found += [summary for summary in part.trials if not summary.status] if part else []
    return found


def _listed(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Keeps the experiment's row in the cluster's list; written on changes of status alone."""
    body = f"{state.status}\n{state.owner}".encode()
    turn.write_row(LISTING, f"{state.experiment_id:012d}", body)
    return state
