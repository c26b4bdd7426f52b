"""The state of an experiment: its head, its definition, its changed settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.cost import to_micros
from control_plane.actors.era_rules import LENGTH_ERA, LifecycleRules
from control_plane.actors.experiment.bill import Bill
from control_plane.actors.identifiers import IdBlock
from control_plane.actors.job_row import JobRow
from control_plane.actors.pool_moves import PoolMoves, PoolPreferences
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import (
    CheckpointRef,
    JobKind,
    Retention,
    Status,
    TrialSettings,
)
from control_plane.actors.step import StepContext
from control_plane.searchers.search import SearchPlan, SearchState

LISTING = "experiments"


@dataclass(frozen=True, slots=True)
class Definition:
    """Part `definition`, written at the start and when the experiment is continued with changes.
    The description, the labels, the retention, the job, the settings' pool, the workspace and the
    project are the initial ones.
    `pools`: those that the job may move between, None for one alone.
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
    pools: PoolPreferences | None = None
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED


@dataclass(frozen=True, slots=True)
class Settings:
    """Part `settings`, absent until a user changes one of them. `weight`, `priority` and
    `position` as in JobRow.
    """

    description: str
    labels: tuple[str, ...]
    max_slots: int | None
    retention: Retention
    weight: float = 1.0
    priority: int | None = None
    position: str | None = None
    max_cost_micros: int | None = None
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentState:
    """The head of an experiment. `trials` were created, of which `trials_open` have not ended.

    `life` is the run generation: it counts how often the experiment was continued. `generation`
    counts the collections of checkpoints that it requested.
    `progress` is in [0, 1], None where an ended experiment has none. `time_metric` is "" where the
    search has none. `is_open_ended`: the trials' code decides how long to train, and reports the
    share that is done. `counts_epochs`: only the trials know how many batches an epoch has; they
    report the share of their length that is done. `notices` counts interruption notices by their
    outcome. `pool_moves` are the moves of its job between its preferred pools, None if it has only
    one pool. `lists_figures`: its listing row has the figures of listing.py.
    `grows_id_blocks`: it reserves trial ids in blocks that grow with the number of its trials.
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
    is_open_ended: bool = False
    notices: Mapping[str, int] = field(default_factory=dict)
    pool_moves: PoolMoves | None = None
    kind: JobKind = JobKind.EXPERIMENT
    counts_epochs: bool = False
    lists_figures: bool = False
    grows_id_blocks: bool = False

    @property
    def title(self) -> str:
        """The name in sentences to users: `experiment 7`."""
        return f"{self.kind} {self.experiment_id}"


def definition_of(context: StepContext) -> Definition:
    """The experiment's definition."""
    found = context.part("definition", Definition)
    assert found is not None
    return found


def settings_of(context: StepContext) -> Settings:
    """The experiment's settings in force."""
    return effective_settings(definition_of(context), context.part("settings", Settings))


def effective_settings(definition: Definition, changed: Settings | None) -> Settings:
    """The settings in force, given the part `settings`, None where it is absent."""
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
        max_cost_micros=None if limit is None else to_micros(limit),
        workspace=definition.workspace,
        project=definition.project,
    )


class SearchParts:
    """The parts of a search, kept as parts of its experiment."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def read(self, name: str) -> bytes | None:
        """The piece of the search with this name, None if there is none."""
        return self._context.part(f"search/{name}", bytes)

    def write(self, name: str, piece: bytes) -> None:
        """Replace the piece of the search with this name."""
        self._context.write_part(f"search/{name}", piece)


def listing_sort_key(experiment_id: int) -> str:
    """The sort key of an experiment's listing row."""
    return f"{experiment_id:012d}"
