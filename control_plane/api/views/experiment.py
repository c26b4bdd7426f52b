"""Experiments as the API shows them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.actors.experiment_state import (
    LISTING,
    Definition,
    ExperimentState,
    Settings,
    read_listing,
    settings_now,
)
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART, Summaries
from control_plane.actors.records import Status
from control_plane.actors.trial_checkpoints import CHECKPOINTS, PINS, read_pin
from control_plane.agents.spec import stored_config
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.pages import Page, PageAsked
from control_plane.api.services import Services
from control_plane.api.views.rows import all_rows, scanned
from control_plane.api.views.search_method import MethodView, method_view
from control_plane.state.table import Key, Row


class TrialCounts(Body):
    """`running`: those that have not ended."""

    requested: int = 0
    running: int = 0
    completed: int = 0
    errored: int = 0


class Experiment(Body):
    """See docs/api.md. `id` is null for one that was only validated."""

    id: int | None
    name: str
    description: str
    state: Status
    user: str
    resource_pool: str
    searcher: str
    metric: str
    smaller_is_better: bool
    progress: float | None = 0.0
    best_metric: float | None = None
    best_trial_id: int | None = None
    trials: TrialCounts = TrialCounts()
    created_ms: int
    ended_ms: int | None = None
    message: str = ""
    labels: list[str]
    job_id: str
    archived: bool = False
    seed: int
    max_slots: int | None
    weight: float
    priority: int | None
    max_cost: float | None
    cost: float = 0.0
    warnings: list[str] = []
    save_experiment_best: int
    save_trial_best: int
    save_trial_latest: int
    code_sha256: str
    search_method: MethodView | None = None


class ExperimentWithConfig(Experiment):
    """`config` with every default, secrets masked."""

    config: dict[str, Any]


def found(services: Services, experiment_id: int) -> tuple[ExperimentState, Definition]:
    """The experiment's head and definition.

    Raises:
        ApiError: not_found.
    """
    known = services.agents.experiment(experiment_id)
    if known is None:
        head = services.engine.state(addresses.experiment(experiment_id))
        if head is None:
            raise ApiError(Code.NOT_FOUND, f"there is no experiment {experiment_id}")
        raise ApiError(Code.NOT_FOUND, f"experiment {experiment_id} was deleted")
    return known


def experiment(services: Services, experiment_id: int, warnings: Sequence[str] = ()) -> Experiment:
    """One experiment, with what its creation is to warn of; ApiError not_found."""
    fields = _fields(services, *found(services, experiment_id))
    return Experiment(**fields, warnings=list(warnings))


def experiment_with_config(services: Services, experiment_id: int) -> ExperimentWithConfig:
    """One experiment with its configuration; ApiError not_found."""
    state, definition = found(services, experiment_id)
    config = stored_config(definition).public()
    return ExperimentWithConfig(**_fields(services, state, definition), config=config)


@dataclass(frozen=True)
class Wanted:
    """What a list is cut down to. `states` is a comma list, `name` a part of the name."""

    states: str | None = None
    user: str | None = None
    label: str | None = None
    name: str | None = None
    archived: Literal["false", "true", "all"] = "false"


def experiments(services: Services, asked: PageAsked, wanted: Wanted) -> Page[Experiment]:
    """Newest first."""
    states = _states(wanted.states)
    part = (wanted.name or "").casefold()

    def is_wanted(row: Row) -> bool:
        entry = read_listing(row.body)
        if wanted.archived != "all" and entry.archived != (wanted.archived == "true"):
            return False
        if wanted.label is not None and wanted.label not in entry.labels:
            return False
        named = part in entry.name.casefold()
        return named and (not states or entry.state in states) and wanted.user in (None, entry.user)

    rows, cursor = scanned(services.table, LISTING, asked, descending=True, wanted=is_wanted)
    # One that was deleted since the row was read is left out.
    known = [services.agents.experiment(int(row.key.sort)) for row in rows]
    items = [Experiment(**_fields(services, *found)) for found in known if found is not None]
    return Page(items=items, next_cursor=cursor)


def check_unpinned(services: Services, experiment_id: int) -> None:
    """Whether no other experiment started from a checkpoint of this one.

    Raises:
        ApiError: not_found; conflict, naming one that did.
    """
    found(services, experiment_id)
    for row in all_rows(services.table, PINS, " ", "~"):
        others = [by for by in read_pin(row.body).by if by != experiment_id]
        source = services.table.get(Key(CHECKPOINTS, row.key.sort)) if others else None
        trial = services.agents.trial(int(source.body)) if source else None
        if trial is not None and trial.experiment_id == experiment_id:
            text = f"experiment {others[0]} started from its checkpoint {row.key.sort}"
            raise ApiError(Code.CONFLICT, f"{text}; delete that experiment first")


def trial_ids(services: Services, state: ExperimentState, first: int, end: int) -> Iterator[int]:
    """Ids of the trials numbered from `first` to before `end`."""
    address = addresses.experiment(state.experiment_id)
    for index in range(first // SUMMARIES_PER_PART, -(-end // SUMMARIES_PER_PART)):
        part = services.engine.part(address, f"trials/{index}")
        trials = part.trials if isinstance(part, Summaries) else ()
        for number, summary in enumerate(trials, index * SUMMARIES_PER_PART):
            if first <= number < end:
                yield summary.trial_id


def settings(services: Services, state: ExperimentState, definition: Definition) -> Settings:
    """What may be changed of an experiment, as it is now."""
    changed = services.engine.part(addresses.experiment(state.experiment_id), "settings")
    assert changed is None or isinstance(changed, Settings)
    return settings_now(definition, changed)


def _fields(services: Services, state: ExperimentState, definition: Definition) -> dict[str, Any]:
    now = settings(services, state, definition)
    counts = TrialCounts(
        requested=state.trials,
        running=state.trials_open,
        completed=state.trials_completed,
        errored=state.trials_errored,
    )
    return {
        "id": state.experiment_id,
        "name": state.name,
        "description": now.description,
        "state": state.status,
        "user": state.owner,
        "resource_pool": state.pool,
        "searcher": state.searcher,
        "metric": state.metric,
        "smaller_is_better": state.smaller_is_better,
        "progress": state.progress,
        "best_metric": state.best_metric,
        "best_trial_id": state.best_trial,
        "trials": counts,
        "created_ms": state.created_ms,
        "ended_ms": state.ended_ms,
        "message": state.message,
        "labels": list(now.labels),
        "job_id": definition.job_id,
        "archived": state.archived,
        "seed": definition.plan.seed,
        "max_slots": now.max_slots,
        "weight": now.weight,
        "priority": now.priority,
        "max_cost": _dollars(now.max_cost_micros),
        "cost": state.bill.spent_micros(services.now_ms()) / MICROS_PER_DOLLAR,
        **asdict(now.retention),
        "code_sha256": definition.code_sha256,
        "search_method": method_view(services, state),
    }


def _dollars(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_DOLLAR


def _states(text: str | None) -> frozenset[str]:
    names = frozenset(text.upper().split(",")) if text else frozenset()
    for name in sorted(names - set(Status)):
        known = ", ".join(Status)
        raise invalid("state", f"{name!r:.40} is no state; known are {known}")
    return names
