"""Queries of trials: state, progress, cost, environment and metadata."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.metadata_terms import metadata_terms
from control_plane.actors.records import Status
from control_plane.actors.trial.hangs import hang_text
from control_plane.actors.trial.metering import cost_so_far
from control_plane.actors.trial.restart_window import counted_failures
from control_plane.actors.trial.state import Allocation as TrialAllocation
from control_plane.actors.trial.state import DesiredState, TrialState
from control_plane.actors.trial.time_limit import run_end_ms
from control_plane.actors.use import Use, sum_uses
from control_plane.agents.sessions import ENVIRONMENT, read_metadata_of, read_trial_metadata
from control_plane.errors import Code, RequestError
from control_plane.json_gate import parse_stored_object, readable
from control_plane.queries import experiment as experiments
from control_plane.queries import metrics
from control_plane.queries.answer import Answer
from control_plane.queries.conditions import (
    SearchLengths,
    TrialCondition,
    search_lengths,
    trial_condition,
)
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.queries.replacements import ReplacementView, trial_replacements
from control_plane.queries.state_filter import StateFilter
from control_plane.queries.use_answer import UseAnswer, use_answer
from control_plane.services import Services
from control_plane.state.table import GET_MAX

# The most trials of which a request reads the metadata. A page with a cursor may therefore be short
# or empty.
SEARCHED_MAX = 1_000
_ALL_STATES = StateFilter()


class Place(Answer):
    """The slots of an agent that an allocation holds."""

    agent_id: str
    slots: list[int]


class Hang(Answer):
    """A hang of a run. `since_ms` is the time of the last output, in epoch ms."""

    since_ms: int
    text: str


class LowUse(Answer):
    """A time in which the slots of a run compute too little, since `since_ms`."""

    since_ms: int
    text: str


class Allocation(Answer):
    """The current allocation of a trial.

    `places` is empty while the allocation waits for slots; then it has an item for each node.
    `hang` describes a present hang of the run; null while the run works. `low_use` describes too
    little use of the slots; null while the use is enough.
    """

    id: str
    state: str
    places: list[Place]
    hang: Hang | None
    low_use: LowUse | None


class Loss(Answer):
    """An allocation that ended without a failure of the trial, for example when a machine failed.

    `agent_id` is "" if the agent is unknown.
    """

    time_ms: int
    agent_id: str
    cause: str


class Damage(Answer):
    """A damaged checkpoint, found by a run that tried to start from the checkpoint.

    The trial continued from the checkpoint `instead`, or null if it had no other checkpoint.
    """

    time_ms: int
    uuid: str
    steps_completed: int
    cause: str
    instead: str | None
    instead_steps: int


class LogMatchView(Answer):
    """A line of a run's log that matched a log policy, with the policy's actions and signal.

    `agent_id` is "" if the agent is unknown. `rank` is the rank of the process that wrote the line.
    """

    time_ms: int
    epoch: int
    policy: str
    line: str
    actions: list[str]
    signal: str
    agent_id: str
    rank: int


class Trial(Answer):
    """A trial; docs/api.md describes the fields."""

    id: int
    experiment_id: int
    number: int
    state: Status
    condition: TrialCondition
    hparams: dict[str, Any]
    seed: int
    steps_completed: int
    target_steps: int | None
    target_epochs: int | None
    epochs_completed: float | None
    metric: float | None
    best_metric: float | None
    restarts: int
    counted_restarts: int
    restart_window_ms: int | None
    ends_ms: int | None
    losses: int
    recent_losses: list[Loss]
    recent_damages: list[Damage]
    signal: str
    log_matches: list[LogMatchView]
    retries_canceled: str
    excluded_agents: list[str]
    latest_checkpoint: str | None
    warm_start: str | None
    allocation: Allocation | None
    use: UseAnswer | None
    created_ms: int
    ended_ms: int | None
    message: str
    exit_code: int | None
    cost: float
    logs_deleted_ms: int | None = None
    metrics_deleted_ms: int | None = None


class TrialWithEnvironment(Trial):
    """A trial with the environment and metadata.

    `environment` is the latest environment that the trial's process reported, or null. `metadata`
    was set by the trial's code and by users. `replacements` are the latest replacements of runs
    that lost their slots, the newest first.
    """

    environment: dict[str, Any] | None
    metadata: dict[str, Any]
    metadata_revision: str
    metadata_damage: str
    replacements: list[ReplacementView]


def get_trial(services: Services, trial_id: int) -> TrialState:
    """Load the trial's state, also of an ended trial.

    Raises:
        RequestError: not_found, if the trial does not exist or was deleted.
    """
    state = services.experiments.read_trial(trial_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no trial {trial_id}")
    if state.deleted:
        text = f"trial {trial_id} was deleted with experiment {state.experiment_id}"
        raise RequestError(Code.NOT_FOUND, text)
    return state


def describe_trial(services: Services, trial_id: int) -> TrialWithEnvironment:
    """Return a trial with the environment and metadata.

    Raises:
        RequestError: not_found, if the trial does not exist or was deleted.
        OSError: the object store does not answer.
    """
    state = get_trial(services, trial_id)
    fields = _fields(services, state, _read_search(services, state.experiment_id))
    metadata, damage, revision = read_trial_metadata(services.table, trial_id)
    return TrialWithEnvironment(
        **fields,
        environment=_environment(services, trial_id),
        metadata=metadata,
        metadata_revision=revision,
        metadata_damage=damage,
        replacements=trial_replacements(services, state),
    )


def list_trials(
    services: Services,
    experiment_id: int,
    page: PageRequest,
    terms: Sequence[str] = (),
    states: StateFilter = _ALL_STATES,
) -> Page[Trial]:
    """Return a page of the experiment's trials, sorted by number.

    Deleted trials, and trials that are only just being created, are left out, so that a page may be
    short.

    Args:
        services: the services that read trials.
        experiment_id: the experiment.
        page: the request.
        terms: list only trials whose metadata have all of these terms. A request then reads the
            metadata of at most SEARCHED_MAX trials, so that a page with a cursor may be empty.
        states: list only trials that match. A request then searches at most SEARCHED_MAX trials, so
            that a page with a cursor may be short or empty.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list.
        OSError: the object store does not answer.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("trials", (int,))
    first = 0 if after is None else int(after[0]) + 1
    ids: Iterable[int]
    if terms:
        ids, end = _find_trials(services, state, first, page.limit, terms)
    elif not states.is_empty:
        ids, end = _find_trials_by_state(services, state, first, page.limit, states)
    else:
        end = min(state.trials, first + page.limit)
        ids = experiments.trial_ids(services, state, first, end)
    heads = services.experiments.read_trials(ids)
    # A trial has no head before its first message was processed.
    present = [head for head in heads if head is not None and not head.deleted]
    search = _read_search(services, experiment_id)
    items = [
        Trial(**_fields(services, head, search))
        for head in present
        if states.matches(_shown_status(head), trial_condition(head, search.lengths))
    ]
    cursor = encode_cursor("trials", (end - 1,)) if end < state.trials else None
    return Page(items=items, next_cursor=cursor)


def _find_trials(
    services: Services, state: ExperimentState, first: int, limit: int, terms: Sequence[str]
) -> tuple[list[int], int]:
    """Search up to SEARCHED_MAX trials from number `first` on for trials with all terms.

    Returns:
        The ids of at most `limit` matching trials, and the number of the first trial that was not
        searched. That number is the count of trials at the end.
    """
    matching: list[int] = []
    end = min(state.trials, first + SEARCHED_MAX)
    for start in range(first, end, GET_MAX):
        stop = min(end, start + GET_MAX)
        ids = tuple(experiments.trial_ids(services, state, start, stop))
        rows = read_metadata_of(services.table, ids)
        for number, (trial_id, metadata) in enumerate(zip(ids, rows, strict=True), start):
            if metadata_terms(metadata).issuperset(terms):
                matching.append(trial_id)
            if len(matching) == limit:
                return matching, number + 1
    return matching, end


def _find_trials_by_state(
    services: Services, state: ExperimentState, first: int, limit: int, states: StateFilter
) -> tuple[list[int], int]:
    """Search up to SEARCHED_MAX trials from number `first` on for trials that may match the filter.

    Returns:
        The ids of at most `limit` trials, and the number of the first trial that was not searched.
        That number is the count of trials at the end.
    """
    ids: list[int] = []
    end = min(state.trials, first + SEARCHED_MAX)
    for number, summary in experiments.trial_summaries(services, state, first, end):
        is_open = summary.is_open(state.run_generation)
        if states.may_match_trial("" if is_open else summary.status):
            ids.append(summary.trial_id)
        if len(ids) == limit:
            return ids, number + 1
    return ids, end


class _Search(NamedTuple):
    """The properties of an experiment that are part of answers about trials."""

    lengths: SearchLengths = SearchLengths()
    warm_start: str | None = None
    """The UUID of the checkpoint that the experiment's trials start from, or None."""


def _fields(services: Services, state: TrialState, search: _Search) -> dict[str, Any]:
    """Return the fields of the `Trial` answer. For a running trial, metrics are read.

    Raises OSError if the object store does not answer.
    """
    inherited = state.inherited_checkpoint
    return {
        "id": state.trial_id,
        "experiment_id": state.experiment_id,
        "number": state.number,
        "state": _shown_status(state),
        "condition": trial_condition(state, search.lengths),
        "hparams": dict(state.hparams),
        "seed": state.seed,
        "steps_completed": _steps_completed(services, state),
        "target_steps": state.target_steps,
        "target_epochs": state.target_epochs,
        "epochs_completed": state.epochs_done if state.counts_epochs else None,
        "metric": state.metric,
        "best_metric": state.best_metric,
        "restarts": state.restarts,
        "counted_restarts": counted_failures(state, services.now_ms()),
        "restart_window_ms": state.settings.restart_window_ms,
        "ends_ms": run_end_ms(state),
        "losses": state.losses,
        "recent_losses": [
            Loss(time_ms=loss.at_ms, agent_id=loss.agent, cause=loss.cause)
            for loss in state.recent_losses
        ],
        "recent_damages": [
            Damage(
                time_ms=damage.at_ms,
                uuid=damage.uuid,
                steps_completed=damage.steps,
                cause=damage.cause,
                instead=damage.fallback_uuid or None,
                instead_steps=damage.fallback_steps,
            )
            for damage in state.recent_damages
        ],
        "signal": state.signal,
        "log_matches": [
            LogMatchView(
                time_ms=match.at_ms,
                epoch=match.epoch,
                policy=match.name,
                line=match.line,
                actions=list(match.actions),
                signal=match.signal,
                agent_id=match.agent,
                rank=match.rank,
            )
            for match in state.log_matches
        ],
        "retries_canceled": state.retries_canceled,
        "excluded_agents": list(state.excluded_agents),
        "latest_checkpoint": state.checkpoint.uuid if state.checkpoint else None,
        "warm_start": inherited.uuid if inherited else search.warm_start,
        "allocation": _allocation(state, state.allocation) if state.allocation else None,
        "use": use_answer(_use(state)),
        "created_ms": state.created_ms,
        "ended_ms": state.ended_ms,
        "message": _shown_message(state),
        "exit_code": state.exit_code,
        "cost": _cost_micros(services, state) / MICROS_PER_DOLLAR,
        # A mark without a time has epoch 0: nothing was deleted.
        "logs_deleted_ms": state.expired_data.logs_ms or None,
        "metrics_deleted_ms": state.expired_data.metrics_ms or None,
    }


def _shown_message(state: TrialState) -> str:
    """Return the trial's message, or else a text about a run that repeats all training, or "".

    The text is for a later run that started from batch 0, because no checkpoint has the batches
    trained before.
    """
    is_first_run = state.allocation is None or state.epoch == 1
    if state.message or is_first_run or not state.repeats_all_training:
        return state.message
    return (
        f"run {state.epoch} started again from batch 0: no checkpoint has any of the "
        "batches trained before"
    )


def _cost_micros(services: Services, state: TrialState) -> int:
    """Return the cost of the trial in micro-dollars, the running allocation included."""
    allocation = state.allocation
    if allocation is None or not allocation.places:
        return state.cost_micros
    return state.cost_micros + cost_so_far(allocation, services.now_ms())


def _use(state: TrialState) -> Use | None:
    """Return the measured use of the trial, with the last report of a running allocation."""
    return sum_uses(state.use, *(state.allocation.uses if state.allocation else ()))


def _steps_completed(services: Services, state: TrialState) -> int:
    """Return the steps that the trial has trained, by the latest report.

    The trial's state only has the steps of validations and checkpoints. While an allocation runs,
    the training metrics of its rows are read too, up to the target. Raises OSError if the object
    store does not answer.
    """
    if state.allocation is None or not state.allocation.places:
        return state.steps
    reported = metrics.steps_trained(services, state.trial_id, state.epoch)
    target = state.target_steps
    return max(state.steps, reported if target is None else min(reported, target))


def _shown_status(state: TrialState) -> Status:
    """Return the status to show: the status of the ended trial, or of the experiment.

    STOPPING_KILLED for an unended trial that is being killed, alone or because its experiment
    failed.
    """
    if state.status.is_final:
        return state.status
    if state.experiment_status is Status.STOPPING_ERROR:
        return Status.STOPPING_KILLED
    is_killed_alone = state.killed and not state.experiment_status.is_stopping
    return Status.STOPPING_KILLED if is_killed_alone else state.experiment_status


def _read_search(services: Services, experiment_id: int) -> _Search:
    """Read the experiment's definition. Return the defaults without the experiment."""
    loaded = services.experiments.read_experiment(experiment_id)
    if loaded is None:
        return _Search()
    definition = loaded[1]
    source = definition.warm_start
    return _Search(search_lengths(definition), source.uuid if source else None)


def _allocation(state: TrialState, held: TrialAllocation) -> Allocation:
    """Return the answer for the trial's allocation; TERMINATING while the trial has to stop."""
    is_ending = held.desired_state is not DesiredState.RUN and bool(held.places)
    return Allocation(
        id=f"{state.trial_id}.{state.epoch}",
        state="TERMINATING" if is_ending else held.state.value,
        places=[Place(agent_id=place.agent, slots=list(place.slots)) for place in held.places],
        hang=_hang(held),
        low_use=_low_use(held),
    )


def _low_use(held: TrialAllocation) -> LowUse | None:
    """Return the answer for the present low use of a run. None for sufficient use."""
    low_use = held.low_use
    if low_use is None or low_use.since_ms is None:
        return None
    text = f"its slots compute {low_use.percent:.1f} % of the time"
    return LowUse(since_ms=low_use.since_ms, text=text)


def _hang(held: TrialAllocation) -> Hang | None:
    """Return the answer for a present hang of the run, or None."""
    hang = held.hang
    if hang is None or hang.is_over:
        return None
    return Hang(since_ms=hang.since_ms, text=hang_text(hang))


def _environment(services: Services, trial_id: int) -> dict[str, Any] | None:
    """Return the environment that the trial's last run reported. Return None without a report.

    A field of the trial's own report replaces the same field of its agent's report. A report that
    cannot be decoded counts as empty. Values that are not valid JSON for an answer are replaced.
    """
    address, last = addresses.trial(trial_id), f"{ENVIRONMENT}~"
    # In a descending read, the agent's row comes first, because `agent` sorts after other writers.
    rows = services.table.query(address, ENVIRONMENT, last, limit=2, descending=True).rows
    if not rows:
        return None
    epoch, _, writer = rows[0].key.sort.removeprefix(ENVIRONMENT).partition("#")
    of_run = [row for row in rows if row.key.sort.startswith(f"{ENVIRONMENT}{epoch}#")]
    counting = of_run if writer == "agent" else of_run[:1]
    lines = [readable(parse_stored_object(row.body))[0] for row in counting]
    fields = {name: value for line in lines for name, value in line.items()}
    return {name: value for name, value in fields.items() if name not in ("kind", "time_ms")}
