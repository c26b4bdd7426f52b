"""The state of an experiment: the head, the definition, and the changed settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.cost import to_micros
from control_plane.actors.era_rules import LENGTH_ERA, LifecycleRules
from control_plane.actors.event_routes import WebhookChoice
from control_plane.actors.experiment.bill import Bill
from control_plane.actors.identifiers import IdBlock
from control_plane.actors.job_row import JobRow
from control_plane.actors.pool_moves import PoolMoves, PoolPreferences
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import (
    CheckpointRef,
    DataRetention,
    JobKind,
    Retention,
    Status,
    TrialSettings,
)
from control_plane.actors.source_commit import SourceCommit
from control_plane.actors.step import StepContext
from control_plane.rows import experiment_rows
from control_plane.rows.stored_fields import keep_stored_name
from control_plane.searchers.search import SearchPlan, SearchState

LISTING = experiment_rows.LISTING.partition
"""The partition of listing rows, one for each experiment."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The experiment as submitted: the part `definition`, a stored row of the experiment's state.

    A continuation with changes replaces the part. Settings that have changed since are in the part
    `settings`, and the present pool is in the head.
    """

    plan: SearchPlan
    """The settings of the search."""
    settings: TrialSettings
    """The settings of the trials."""
    config: str
    """The stored configuration."""
    code_sha256: str
    """The SHA-256 digest of the model code."""
    description: str
    labels: tuple[str, ...]
    job_id: str
    """The UUID of the experiment's job."""
    test_mode: bool
    """Whether the experiment is a short test run of the code."""
    retention: Retention = field(default_factory=Retention)
    """The numbers of checkpoints that the collector keeps."""
    warm_start: CheckpointRef | None = None
    """The checkpoint from which the trials start. None: the trials start without a checkpoint."""
    rules: LifecycleRules = LENGTH_ERA
    """The lifecycle rules of the experiment's era, for example what a kill does."""
    job: JobRow = field(default_factory=JobRow)
    """The settings for the scheduler."""
    pools: PoolPreferences | None = None
    """The pools between which the job may move. None: the job stays in its pool."""
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    forked_from: int | None = None
    """The id of the experiment that was forked. None: the experiment is no fork."""
    restored_from: int | None = None
    """The id of the notebook or shell with whose files the run starts. None: no such run."""
    stated_fields: Mapping[str, object] = field(default_factory=dict)
    """The fields of the configuration that the user or the template set (config/stated_fields.py).
    Empty: not known, for experiments of older releases and for very large configurations.
    """
    schedule_id: int | None = None
    """The id of the schedule that submitted the experiment. None: a user submitted it."""
    webhooks: WebhookChoice | None = None
    """The section `integrations.webhook` of the configuration. None: no such section."""
    data_retention: DataRetention = field(default_factory=DataRetention)
    """The days for which logs and metrics are kept."""
    source: SourceCommit | None = None
    """The commit of the code. None: the configuration states no commit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The changed settings: the part `settings`, a stored row of the experiment's state.

    The part exists once a user has changed a setting.
    """

    description: str
    labels: tuple[str, ...]
    max_slots: int | None
    """The most slots of the job. None: no limit."""
    retention: Retention
    weight: float = 1.0
    """The value of `JobRow.weight`."""
    priority: int | None = None
    """The value of `JobRow.priority`."""
    position: str | None = None
    """The value of `JobRow.position`."""
    max_cost_micros: int | None = None
    """The most that the experiment may cost, in micro-dollars. None: no limit."""
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    metadata: Mapping[str, object] = field(default_factory=dict)
    """The metadata that users set, as JSON values by key."""
    data_retention: DataRetention = field(default_factory=DataRetention)
    """The days for which logs and metrics are kept."""
    trial_log_days: tuple[tuple[int, int], ...] = ()
    """The days for which logs of single trials are kept, each after the id of the trial."""


@dataclass(frozen=True, slots=True)
class PlannedExpiry:
    """The time at which an experiment requests the deletion of expired data."""

    due_ms: int
    """The time, in epoch ms."""
    is_scheduled: bool = False
    """Whether the time is a time of the cluster's schedule."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A requested deletion of expired data."""

    until_ms: int
    """The time by which the retention of deleted data has ended, in epoch ms."""
    log_days: int | None
    """The days for which logs are kept. None: for ever."""
    metrics_days: int | None
    """The days for which detailed metrics are kept. None: for ever."""
    is_scheduled: bool
    """Whether the collector does not wait for the cluster's schedule."""


@dataclass(frozen=True, slots=True)
class DataExpiry:
    """The planned, requested and finished deletions of an experiment's expired data."""

    planned: PlannedExpiry | None = None
    """The next deletion. None: not planned."""
    pending: Expiry | None = None
    """The deletion that the last collection request contains, or None."""
    until_ms: int = 0
    """The time by which the retention of deleted data has ended, in epoch ms. 0: none was deleted
    since the experiment ended and its settings of retention changed.
    """
    logs_deleted_ms: int | None = None
    """The time of the last deletion of all logs, in epoch ms. None: never."""
    metrics_deleted_ms: int | None = None
    """The time of the last deletion of detailed metrics, in epoch ms. None: never."""


@dataclass(frozen=True, slots=True)
class BestAnnouncement:
    """The best validation that webhooks announced last, and the waiting newer validation."""

    announced_ms: int = 0
    """The time of the announcement, in epoch ms. 0: no best validation was announced."""
    metric: float | None = None
    """The announced searcher metric."""
    waits: bool = False
    """Whether the experiment's present best validation waits for its announcement."""
    units: float | None = None
    """The length of the waiting validation. None: not known."""


@dataclass(frozen=True)
class ExperimentState:
    """The head of an experiment.

    A trial that waits for a place after a continuation counts as open and keeps the status with
    which it ended.
    """

    experiment_id: int
    owner: str
    """The name of the user who submitted the experiment."""
    name: str
    metric: str
    """The name of the searcher metric."""
    smaller_is_better: bool
    """Whether a smaller searcher metric is better."""
    searcher: str
    """The name of the searcher."""
    pool: str
    """The name of the job's present resource pool."""
    created_ms: int
    """The time of the creation, in epoch ms."""
    status: Status
    search: SearchState
    """The state of the search."""
    ids: IdBlock = field(default_factory=IdBlock)
    """The reserved trial ids that are not used yet."""
    trials: int = 0
    """The number of trials that were created. A deletion counts down to 0."""
    trials_open: int = 0
    """The number of trials that have not ended."""
    trials_completed: int = 0
    """The number of trials that have ended in COMPLETED."""
    trials_errored: int = 0
    """The number of trials that have ended in ERROR."""
    progress: float | None = 0.0
    """The progress of the search, from 0 to 1. None: an ended experiment without a progress."""
    best_metric: float | None = None
    """The best searcher metric of all trials, or None."""
    best_trial: int | None = None
    """The id of the trial with the best metric, or None."""
    ended_ms: int | None = None
    """The time of the end, in epoch ms. None: the experiment has not ended."""
    message: str = ""
    """A text for users about the experiment's condition, "" if everything is normal."""
    run_generation: int = field(default=0, metadata=keep_stored_name("life"))
    """The run generation: the number of times that the experiment was continued."""
    archived: bool = False
    """Whether lists leave the experiment out."""
    collection_number: int = field(default=0, metadata=keep_stored_name("generation"))
    """The number of checkpoint collections that the experiment has requested."""
    time_metric: str = ""
    """The name of the search's time metric. "": the search has none."""
    bill: Bill = field(default_factory=Bill)
    """The cost of the experiment."""
    is_open_ended: bool = False
    """Whether the trials' code decides how long to train. Trials then report the share that is
    done.
    """
    notices: Mapping[str, int] = field(default_factory=dict)
    """The number of interruption notices, by notice outcome."""
    pool_moves: PoolMoves | None = None
    """The moves of the job between its preferred pools. None: the job has only one pool."""
    kind: JobKind = JobKind.EXPERIMENT
    counts_epochs: bool = False
    """Whether only the trials know how many batches an epoch has. Trials then report the share of
    their length that is done.
    """
    listing_has_figures: bool = field(default=False, metadata=keep_stored_name("lists_figures"))
    """Whether the listing row contains figures (listing.py)."""
    listing_has_failures: bool = False
    """Whether the listing row says if a trial has failed (listing.py)."""
    has_growing_id_blocks: bool = field(default=False, metadata=keep_stored_name("grows_id_blocks"))
    """Whether the blocks of reserved trial ids grow with the number of trials."""
    first_waiting_trial: int = field(default=-1, metadata=keep_stored_name("held_from"))
    """The number of the first trial that may wait for a place after a continuation. -1: the
    experiment was not continued, or without a limit.
    """
    best_values: Mapping[str, float] = field(default_factory=dict)
    """The other metrics of the validation with the best metric, by name. Empty if this validation
    was discarded: the metrics of the next best validation are not known.
    """
    has_values_row: bool = False
    """Whether the experiment has a values row (values.py)."""
    ends_ms: int | None = None
    """The time at which the experiment comes to its `max_duration`, in epoch ms. None: no limit, or
    no trial of the run generation has had slots yet.
    """
    signal: str = ""
    """The signal of the log policy that matched last in any trial, or ""."""
    raises_events: bool = False
    """Whether webhooks announce the experiment (events.py)."""
    events_raised: int = 0
    """The number of events that webhooks announce or have announced."""
    watches_metrics: bool = False
    """Whether a webhook may announce metrics, as of the last status, trial end or new webhook."""
    crossed_limits: tuple[str, ...] = ()
    """The limits of metrics that webhooks have announced, as `WEBHOOK/TRIGGER`."""
    alerts: int = 0
    """The number of alerts that webhooks announce or have announced."""
    data_expiry: DataExpiry | None = field(default=None, metadata=keep_stored_name("expiry"))
    """The deletion of expired logs and metrics (expiry.py). None: none was planned yet."""
    best_announcement: BestAnnouncement = BestAnnouncement()
    """The best validation that webhooks announced last, and whether a newer one waits."""

    @property
    def expiry(self) -> DataExpiry:
        """Return the plan of the deletion of expired logs and metrics, which may be empty."""
        return self.data_expiry or DataExpiry()

    @property
    def title(self) -> str:
        """Return the kind and id for sentences to users, for example `experiment 7` or `notebook
        8`.
        """
        return f"{self.kind} {self.experiment_id}"


def definition_of(context: StepContext) -> Definition:
    """Return the experiment's part `definition`. Every submitted experiment has the part until the
    deletion.
    """
    definition = context.part("definition", Definition)
    assert definition is not None
    return definition


def settings_of(context: StepContext) -> Settings:
    """Return the experiment's settings in force: the part `settings`, or the submitted settings."""
    return effective_settings(definition_of(context), context.part("settings", Settings))


def effective_settings(definition: Definition, changed: Settings | None) -> Settings:
    """Return the changed settings, or the submitted settings if no setting was changed."""
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
        data_retention=definition.data_retention,
    )


class SearchParts:
    """The blob store of a search. Each blob is a part `search/NAME`, a stored row of the
    experiment.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def read(self, name: str) -> bytes | None:
        """Return a blob of the search. Return None if the blob does not exist."""
        return self._context.part(f"search/{name}", bytes)

    def write(self, name: str, piece: bytes) -> None:
        """Replace a blob of the search, or create the blob."""
        self._context.write_part(f"search/{name}", piece)


def forks_partition(original_id: int) -> str:
    """Return the partition with the row of each fork of an experiment."""
    return experiment_rows.FORK.partition_of(str(original_id))


def listing_sort_key(experiment_id: int) -> str:
    """Return the sort key of an experiment's listing row."""
    return f"{experiment_id:012d}"
