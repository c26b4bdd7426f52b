"""Experiments as the API shows them."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from control_plane.actors import addresses
from control_plane.actors.experiment import (
    LISTING,
    SUMMARIES_PER_PART,
    Definition,
    ExperimentState,
    Summaries,
)
from control_plane.actors.messages import Status
from control_plane.agents.spec import stored_config
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.pages import Page, PageAsked
from control_plane.api.services import Services
from control_plane.api.views.rows import scanned
from control_plane.state.table import Row


class TrialCounts(BaseModel):
    """`running`: those that have not ended."""

    requested: int = 0
    running: int = 0
    completed: int = 0
    errored: int = 0


class Experiment(BaseModel):
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
    progress: float = 0.0
    best_metric: float | None = None
    best_trial_id: int | None = None
    trials: TrialCounts = TrialCounts()
    created_ms: int
    ended_ms: int | None = None
    message: str = ""
    labels: list[str]
    job_id: str


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
        raise ApiError(Code.NOT_FOUND, f"there is no experiment {experiment_id}")
    return known


def experiment(services: Services, experiment_id: int) -> Experiment:
    """One experiment; ApiError not_found."""
    return Experiment(**_fields(*found(services, experiment_id)))


def experiment_with_config(services: Services, experiment_id: int) -> ExperimentWithConfig:
    """One experiment with its configuration; ApiError not_found."""
    state, definition = found(services, experiment_id)
    config = stored_config(definition).public()
    return ExperimentWithConfig(**_fields(state, definition), config=config)


def experiments(
    services: Services, asked: PageAsked, states: str | None, user: str | None
) -> Page[Experiment]:
    """Newest first. `states` is a comma list."""
    chosen = _states(states)

    def wanted(row: Row) -> bool:
        status, _, owner = row.body.decode().partition("\n")
        return (not chosen or status in chosen) and user in (None, owner)

    rows, cursor = scanned(services.table, LISTING, asked, descending=True, wanted=wanted)
    items = [experiment(services, int(row.key.sort)) for row in rows]
    return Page(items=items, next_cursor=cursor)


def trial_ids(services: Services, state: ExperimentState, first: int, end: int) -> Iterator[int]:
    """Ids of the trials numbered from `first` to before `end`."""
    address = addresses.experiment(state.experiment_id)
    for index in range(first // SUMMARIES_PER_PART, -(-end // SUMMARIES_PER_PART)):
        part = services.engine.part(address, f"trials/{index}")
        trials = part.trials if isinstance(part, Summaries) else ()
        for number, summary in enumerate(trials, index * SUMMARIES_PER_PART):
            if first <= number < end:
                yield summary.trial_id


def _fields(state: ExperimentState, definition: Definition) -> dict[str, Any]:
    counts = TrialCounts(
        requested=state.trials,
        running=state.trials_open,
        completed=state.trials_completed,
        errored=state.trials_errored,
    )
    return {
        "id": state.experiment_id,
        "name": state.name,
        "description": definition.description,
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
        "labels": list(definition.labels),
        "job_id": definition.job_id,
    }


def _states(text: str | None) -> frozenset[str]:
    names = frozenset(text.upper().split(",")) if text else frozenset()
    for name in sorted(names - set(Status)):
        known = ", ".join(Status)
        raise invalid("state", f"{name!r:.40} is no state; known are {known}")
    return names
