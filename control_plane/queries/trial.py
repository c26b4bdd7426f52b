"""Trials: described with the state, progress and environment that they reported."""

from collections.abc import Iterable, Sequence
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.content_revision import content_revision
from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.metadata_terms import metadata_terms
from control_plane.actors.records import Status
from control_plane.actors.trial.metering import cost_so_far
from control_plane.actors.trial.state import Allocation as TrialAllocation
from control_plane.actors.trial.state import DesiredState, TrialState
from control_plane.agents.sessions import ENVIRONMENT, read_metadata_of, read_trial_metadata
from control_plane.engine.actor_types import parse_json
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries import metrics
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Row

# Trials whose metadata one request reads: a page may be short, and yet have a next one.
SEARCHED_MAX = 1_000


class Place(Answer):
    """Slots of one agent."""

    agent_id: str
    slots: list[int]


class Allocation(Answer):
    """An allocation. It has no `places` while it waits for slots, then one for each node."""

    id: str
    state: str
    places: list[Place]


class Loss(Answer):
    """An allocation that ended by no failure of the trial; `agent_id` is "" if nobody knows it."""

    time_ms: int
    agent_id: str
    cause: str


class Damage(Answer):
    """A checkpoint that a run began from and found damaged; the trial went on from `instead`, null
    where it had no other of its own.
    """

    time_ms: int
    uuid: str
    steps_completed: int
    cause: str
    instead: str | None
    instead_steps: int


class Trial(Answer):
    """A trial; docs/api.md has the fields."""

    id: int
    experiment_id: int
    number: int
    state: Status
    hparams: dict[str, Any]
    seed: int
    steps_completed: int
    target_steps: int | None
    target_epochs: int | None
    epochs_completed: float | None
    metric: float | None
    best_metric: float | None
    restarts: int
    losses: int
    recent_losses: list[Loss]
    recent_damages: list[Damage]
    latest_checkpoint: str | None
    warm_start: str | None
    allocation: Allocation | None
    created_ms: int
    ended_ms: int | None
    message: str
    exit_code: int | None
    cost: float


class TrialWithEnvironment(Trial):
    """A trial with its environment: what the trial's process reported last, null before that; and
    with the metadata that its code and users have set.
    """

    environment: dict[str, Any] | None
    metadata: dict[str, Any]
    metadata_revision: str


def get_trial(services: Services, trial_id: int) -> TrialState:
    """Load the trial's state; RequestError not_found."""
    state = services.agents.read_trial(trial_id)
    if state is None:
        raise RequestError(Code.NOT_FOUND, f"there is no trial {trial_id}")
    if state.deleted:
        text = f"trial {trial_id} was deleted with experiment {state.experiment_id}"
        raise RequestError(Code.NOT_FOUND, text)
    return state


def describe_trial(services: Services, trial_id: int) -> TrialWithEnvironment:
    """Describe one trial; RequestError not_found."""
    state = get_trial(services, trial_id)
    fields = _fields(services, state, _warm_start(services, state.experiment_id))
    metadata = read_trial_metadata(services.table, trial_id)
    return TrialWithEnvironment(
        **fields,
        environment=_environment(services, trial_id),
        metadata=metadata,
        metadata_revision=content_revision(metadata),
    )


def list_trials(
    services: Services, experiment_id: int, page: PageRequest, terms: Sequence[str] = ()
) -> Page[Trial]:
    """List the experiment's trials by number, or those with these terms of metadata; RequestError
    not_found.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after("trials", (int,))
    first = 0 if after is None else int(after[0]) + 1
    ids: Iterable[int]
    if terms:
        ids, end = _find_trials(services, state, first, page.limit, terms)
    else:
        end = min(state.trials, first + page.limit)
        ids = experiments.trial_ids(services, state, first, end)
    heads = services.agents.read_trials(ids)
    # A trial whose first message is still on its way has no head yet.
    present = [head for head in heads if head is not None and not head.deleted]
    warm_start = _warm_start(services, experiment_id)
    items = [Trial(**_fields(services, head, warm_start)) for head in present]
    cursor = encode_cursor("trials", (end - 1,)) if end < state.trials else None
    return Page(items=items, next_cursor=cursor)


def _find_trials(
    services: Services, state: ExperimentState, first: int, limit: int, terms: Sequence[str]
) -> tuple[list[int], int]:
    """Find at most `limit` trials with these terms among SEARCHED_MAX from number `first` on; with
    their ids the number at which the search ended.
    """
    found: list[int] = []
    end = min(state.trials, first + SEARCHED_MAX)
    for start in range(first, end, GET_MAX):
        stop = min(end, start + GET_MAX)
        ids = tuple(experiments.trial_ids(services, state, start, stop))
        rows = read_metadata_of(services.table, ids)
        for number, (trial_id, metadata) in enumerate(zip(ids, rows, strict=True), start):
            if metadata_terms(metadata).issuperset(terms):
                found.append(trial_id)
            if len(found) == limit:
                return found, number + 1
    return found, end


def _fields(services: Services, state: TrialState, warm_start: str | None) -> dict[str, Any]:
    return {
        "id": state.trial_id,
        "experiment_id": state.experiment_id,
        "number": state.number,
        "state": _shown_status(state),
        "hparams": dict(state.hparams),
        "seed": state.seed,
        "steps_completed": _steps_completed(services, state),
        "target_steps": state.target_steps,
        "target_epochs": state.target_epochs,
        "epochs_completed": state.epochs_done if state.counts_epochs else None,
        "metric": state.metric,
        "best_metric": state.best_metric,
        "restarts": state.restarts,
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
                instead=damage.instead or None,
                instead_steps=damage.instead_steps,
            )
            for damage in state.recent_damages
        ],
        "latest_checkpoint": state.checkpoint.uuid if state.checkpoint else None,
        "warm_start": state.inherited.uuid if state.inherited else warm_start,
        "allocation": _allocation(state, state.allocation) if state.allocation else None,
        "created_ms": state.created_ms,
        "ended_ms": state.ended_ms,
        "message": state.message,
        "exit_code": state.exit_code,
        "cost": _cost_micros(services, state) / MICROS_PER_DOLLAR,
    }


def _cost_micros(services: Services, state: TrialState) -> int:
    """The cost of the trial, with that of its allocation so far."""
    allocation = state.allocation
    if allocation is None or not allocation.places:
        return state.cost_micros
    return state.cost_micros + cost_so_far(allocation, services.now_ms())


def _steps_completed(services: Services, state: TrialState) -> int:
    """The steps that the trial is known to have made: its state holds only those of validations and
    checkpoints.
    """
    if state.allocation is None or not state.allocation.places:
        return state.steps
    reported = metrics.steps_trained(services, state.trial_id, state.epoch)
    target = state.target_steps
    return max(state.steps, reported if target is None else min(reported, target))


def _shown_status(state: TrialState) -> Status:
    """The trial's own status once it has ended, before that its experiment's."""
    if state.status.is_final:
        return state.status
    if state.experiment_status is Status.STOPPING_ERROR:
        return Status.STOPPING_KILLED
    is_killed_alone = state.killed and not state.experiment_status.is_stopping
    return Status.STOPPING_KILLED if is_killed_alone else state.experiment_status


def _warm_start(services: Services, experiment_id: int) -> str | None:
    """The checkpoint that a trial starts from while it has none of its own."""
    loaded = services.agents.read_experiment(experiment_id)
    source = loaded[1].warm_start if loaded else None
    return source.uuid if source else None


def _allocation(state: TrialState, held: TrialAllocation) -> Allocation:
    ending = held.wish is not DesiredState.RUN and bool(held.places)
    return Allocation(
        id=f"{state.trial_id}.{state.epoch}",
        state="TERMINATING" if ending else held.state.value,
        places=[Place(agent_id=place.agent, slots=list(place.slots)) for place in held.places],
    )


def _environment(services: Services, trial_id: int) -> dict[str, Any] | None:
    """The environment that the last run reported: the trial's own fields over its agent's."""
    address, last = addresses.trial(trial_id), f"{ENVIRONMENT}~"
    # Of a run's writers the agent is the last.
    rows = services.table.query(address, ENVIRONMENT, last, limit=2, descending=True).rows
    if not rows:
        return None
    epoch, _, writer = rows[0].key.sort.removeprefix(ENVIRONMENT).partition("#")
    of_run = [row for row in rows if row.key.sort.startswith(f"{ENVIRONMENT}{epoch}#")]
    counting = of_run if writer == "agent" else of_run[:1]
    lines = [_parse_environment(row) for row in counting]
    fields = {name: value for line in lines for name, value in line.items()}
    return {name: value for name, value in fields.items() if name not in ("kind", "time_ms")}


def _parse_environment(row: Row) -> dict[str, Any]:
    """The fields of a stored environment; none where it is nested deeper than can be read, as it
    was accepted once.
    """
    try:
        fields: dict[str, Any] = parse_json(row.body)
    except ValueError:
        return {}
    return fields
