"""Trials as the API shows them, with what they reported."""

from typing import Any

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.actors.records import Status
from control_plane.actors.trial_cost import cost_so_far
from control_plane.actors.trial_state import Allocation as TrialAllocation
from control_plane.actors.trial_state import TrialState, Wish
from control_plane.agents.sessions import ENVIRONMENT
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code
from control_plane.api.pages import Page, PageAsked, write_cursor
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import metrics
from control_plane.dispatch.kinds import parse_json
from control_plane.searchers.method import ENDLESS


class Place(Body):
    """Slots of one agent."""

    agent_id: str
    slots: list[int]


class Allocation(Body):
    """It has no `places` while it waits for slots, then one for each of its nodes."""

    id: str
    state: str
    places: list[Place]


class Loss(Body):
    """An allocation that ended by no failure of the trial; `agent_id` is "" if nobody knows it."""

    time_ms: int
    agent_id: str
    cause: str


class Trial(Body):
    """See docs/api.md."""

    id: int
    experiment_id: int
    number: int
    state: Status
    hparams: dict[str, Any]
    seed: int
    steps_completed: int
    target_steps: int | None
    metric: float | None
    best_metric: float | None
    restarts: int
    losses: int
    recent_losses: list[Loss]
    latest_checkpoint: str | None
    warm_start: str | None
    allocation: Allocation | None
    created_ms: int
    ended_ms: int | None
    message: str
    cost: float


class TrialWithEnvironment(Trial):
    """`environment` is what the trial's process reported last, null before that."""

    environment: dict[str, Any] | None


def found(services: Services, trial_id: int) -> TrialState:
    """The trial's head; ApiError not_found."""
    state = services.agents.trial(trial_id)
    if state is None:
        raise ApiError(Code.NOT_FOUND, f"there is no trial {trial_id}")
    if state.deleted:
        text = f"trial {trial_id} was deleted with experiment {state.experiment_id}"
        raise ApiError(Code.NOT_FOUND, text)
    return state


def trial_with_environment(services: Services, trial_id: int) -> TrialWithEnvironment:
    """One trial; ApiError not_found."""
    state = found(services, trial_id)
    fields = _fields(services, state, _warm_start(services, state.experiment_id))
    return TrialWithEnvironment(**fields, environment=_environment(services, trial_id))


def trials(services: Services, experiment_id: int, asked: PageAsked) -> Page[Trial]:
    """The experiment's trials by number; ApiError not_found."""
    state, _ = experiments.found(services, experiment_id)
    after = asked.after("trials", (int,))
    first = 0 if after is None else int(after[0]) + 1
    end = min(state.trials, first + asked.limit)
    heads = services.agents.trials(experiments.trial_ids(services, state, first, end))
    # A trial whose first message is still on its way has no head yet.
    kept = [head for head in heads if head is not None and not head.deleted]
    warm_start = _warm_start(services, experiment_id)
    items = [Trial(**_fields(services, head, warm_start)) for head in kept]
    cursor = write_cursor("trials", (end - 1,)) if end < state.trials else None
    return Page(items=items, next_cursor=cursor)


def _fields(services: Services, state: TrialState, warm_start: str | None) -> dict[str, Any]:
    return {
        "id": state.trial_id,
        "experiment_id": state.experiment_id,
        "number": state.number,
        "state": _state(state),
        "hparams": dict(state.hparams),
        "seed": state.seed,
        "steps_completed": _steps(services, state),
        "target_steps": None if state.length == ENDLESS else state.length,
        "metric": state.metric,
        "best_metric": state.best_metric,
        "restarts": state.restarts,
        "losses": state.losses,
        "recent_losses": [
            Loss(time_ms=loss.at_ms, agent_id=loss.agent, cause=loss.cause)
            for loss in state.recent_losses
        ],
        "latest_checkpoint": state.checkpoint.uuid if state.checkpoint else None,
        "warm_start": state.inherited.uuid if state.inherited else warm_start,
        "allocation": _allocation(state, state.allocation) if state.allocation else None,
        "created_ms": state.created_ms,
        "ended_ms": state.ended_ms,
        "message": state.message,
        "cost": _cost_micros(services, state) / MICROS_PER_DOLLAR,
    }


def _cost_micros(services: Services, state: TrialState) -> int:
    """With what its allocation has cost so far."""
    held = state.allocation
    running = cost_so_far(held, services.now_ms()) if held is not None and held.places else 0
    return state.cost_micros + running


def _steps(services: Services, state: TrialState) -> int:
    """As far as the trial is known to be: its state moves only with validations and checkpoints."""
    if state.allocation is None or not state.allocation.places:
        return state.steps
    reported = metrics.steps_trained(services, state.trial_id, state.epoch)
    return max(state.steps, reported if state.length is None else min(reported, state.length))


def _state(state: TrialState) -> Status:
    """Its own once it has ended, before that its experiment's."""
    if state.status.final:
        return state.status
    if state.experiment_status is Status.STOPPING_ERROR:
        return Status.STOPPING_KILLED
    alone = state.killed and not state.experiment_status.stopping
    return Status.STOPPING_KILLED if alone else state.experiment_status


def _warm_start(services: Services, experiment_id: int) -> str | None:
    """The checkpoint that a trial starts from while it has none of its own."""
    known = services.agents.experiment(experiment_id)
    source = known[1].warm_start if known else None
    return source.uuid if source else None


def _allocation(state: TrialState, held: TrialAllocation) -> Allocation:
    ending = held.wish is not Wish.RUN and bool(held.places)
    return Allocation(
        id=f"{state.trial_id}.{state.epoch}",
        state="TERMINATING" if ending else held.state.value,
        places=[Place(agent_id=place.agent, slots=list(place.slots)) for place in held.places],
    )


def _environment(services: Services, trial_id: int) -> dict[str, Any] | None:
    """What the last run said of where it runs: the trial's own words over its agent's."""
    address, last = addresses.trial(trial_id), f"{ENVIRONMENT}~"
    # The agent is the last of a run's writers.
    rows = services.table.query(address, ENVIRONMENT, last, limit=2, descending=True).rows
    if not rows:
        return None
    epoch, _, writer = rows[0].key.sort.removeprefix(ENVIRONMENT).partition("#")
    of_run = [row for row in rows if row.key.sort.startswith(f"{ENVIRONMENT}{epoch}#")]
    told = of_run if writer == "agent" else of_run[:1]
    lines = [parse_json(row.body) for row in told]
    fields = {name: value for line in lines for name, value in line.items()}
    return {name: value for name, value in fields.items() if name not in ("kind", "time_ms")}
