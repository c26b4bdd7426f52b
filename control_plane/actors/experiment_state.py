"""What an experiment is made of: its head, its definition, and the settings that may change."""

import json
from dataclasses import dataclass, field

from control_plane.actors.cost import micros_of
from control_plane.actors.experiment_bill import Bill
from control_plane.actors.identifiers import IdBlock
from control_plane.actors.jobs import JobRow
from control_plane.actors.records import CheckpointRef, Retention, Status, TrialSettings
from control_plane.actors.rules import LENGTH_ERA, LifecycleRules
from control_plane.actors.step import Turn
from control_plane.searchers.search import SearchPlan, SearchState

LISTING = "experiments"


@dataclass(frozen=True, slots=True)
class Definition:
    """Part `definition`, written at the start and when the experiment is continued with changes;
    the description, the labels, the retention, the job and the settings' pool are those it began
    with.
    """

    plan: SearchPlan
    settings: TrialSettings
    config: str
    code_sha256: str
    description: str
    labels: tuple[str, ...]
    job_id: str
    test_mode: bool
    retention: Retention = field(default_factory=Retention)
    warm_start: CheckpointRef | None = None
    rules: LifecycleRules = LENGTH_ERA
    job: JobRow = field(default_factory=JobRow)


@dataclass(frozen=True, slots=True)
class Settings:
    """Part `settings`: what a user may change at any time. It is absent until it is changed.
    `weight`, `priority` and `position` as in JobRow.
    """

    description: str
    labels: tuple[str, ...]
    max_slots: int | None
    retention: Retention
    weight: float = 1.0
    priority: int | None = None
    position: str | None = None
    max_cost_micros: int | None = None


@dataclass(frozen=True)
class ExperimentState:
    """The head. `trials` were created, of which `trials_open` have not ended.

    `life` counts how often it was continued, `generation` the collections it asked for.
    `progress` is in [0, 1], None where an ended experiment has none. `time_metric` is "" where the
    search has none.
    """

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
    progress: float | None = 0.0
    best_metric: float | None = None
    best_trial: int | None = None
    ended_ms: int | None = None
    message: str = ""
    life: int = 0
    archived: bool = False
    generation: int = 0
    time_metric: str = ""
    bill: Bill = field(default_factory=Bill)


@dataclass(frozen=True, slots=True)
class Listing:
    """The experiment's row in the cluster's list: what the list can be filtered by."""

    state: str
    user: str
    name: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False


def definition_of(turn: Turn) -> Definition:
    """The experiment's definition."""
    found = turn.part("definition", Definition)
    assert found is not None
    return found


def settings_of(turn: Turn) -> Settings:
    """The experiment's settings as they are now."""
    return settings_now(definition_of(turn), turn.part("settings", Settings))


def settings_now(definition: Definition, changed: Settings | None) -> Settings:
    """The settings, given the part of that name."""
    if changed is not None:
        return changed
    limit = definition.settings.max_cost
    return Settings(
        definition.description,
        definition.labels,
        definition.job.max_slots,
        definition.retention,
        definition.job.weight,
        definition.job.priority,
        max_cost_micros=None if limit is None else micros_of(limit),
    )


class SearchParts:
    """What the search keeps: parts of its experiment."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def read(self, name: str) -> bytes | None:
        """See `Parts` of the searchers."""
        return self._turn.part(f"search/{name}", bytes)

    def write(self, name: str, piece: bytes) -> None:
        """See `Parts` of the searchers."""
        self._turn.write_part(f"search/{name}", piece)


def listing_sort(experiment_id: int) -> str:
    """The sort key of an experiment's row in the list."""
    return f"{experiment_id:012d}"


def listed(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Keeps the row in the list; written when something in it changes, and only then."""
    row = {
        "state": state.status,
        "user": state.owner,
        "name": state.name,
        "labels": settings_of(turn).labels,
        "archived": state.archived,
    }
    turn.write_row(LISTING, listing_sort(state.experiment_id), json.dumps(row).encode())
    return state


def read_listing(body: bytes) -> Listing:
    """A row of the list. Rows of before there was more in them are two lines."""
    if not body.startswith(b"{"):
        state, _, user = body.decode().partition("\n")
        return Listing(state, user)
    row = json.loads(body)
    return Listing(row["state"], row["user"], row["name"], tuple(row["labels"]), row["archived"])
