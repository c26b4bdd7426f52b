"""The messages to an experiment, and the API's commands.

The messages of all actors follow the same rules:
- Names are in the past tense, and fields are JSON values.
- A new field has a default, so that a message of an older release can still be decoded.
- Addresses contain the cluster-wide id of a trial. Messages contain its number within the
  experiment: the order of creation, from 0.
- `run_generation` counts the continuations of the experiment.
- `missing_metric_reason` says why a validation has no searcher metric. It is "" with a metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.era_rules import LENGTH_ERA, LifecycleRules
from control_plane.actors.event_routes import WebhookChoice
from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.experiment_events import (
    BestValidationDue,
    DeadlineNear,
    TrialAlerted,
    TrialLogMatched,
    WebhooksChanged,
)
from control_plane.actors.messages.experiment_expiry import ExpiryDue, ExpiryRequested
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.pool_moves import PoolPreferences
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
from control_plane.actors.use import Use
from control_plane.rows.stored_fields import keep_stored_name
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed
from control_plane.searchers.posted_operations import PostedOperations
from control_plane.searchers.search import SearchPlan


@dataclass(frozen=True, slots=True)
class ExperimentSubmitted:
    """The experiment was submitted. This message creates the actor."""

    experiment_id: int
    owner: str
    name: str
    config: str
    """The stored configuration."""
    code_sha256: str
    """The SHA-256 digest of the model code."""
    plan: SearchPlan
    """The settings of the search."""
    settings: TrialSettings
    """The settings that all trials share."""
    metric: str
    """The name of the searcher metric."""
    searcher: str
    """The name of the searcher."""
    paused: bool
    """Whether the experiment begins PAUSED. Otherwise it begins ACTIVE."""
    description: str = ""
    labels: tuple[str, ...] = ()
    job_id: str = ""
    """The UUID of the experiment's job."""
    test_mode: bool = False
    """Whether the experiment is a short test run of the code."""
    retention: Retention = field(default_factory=Retention)
    """The numbers of checkpoints that the collector keeps."""
    warm_start: CheckpointRef | None = None
    """The checkpoint from which the trials start. None: the trials start without a checkpoint."""
    rules: LifecycleRules = LENGTH_ERA
    """The lifecycle rules of the experiment's era."""
    time_metric: str = ""
    """The name of the search's time metric. "": the search has none."""
    job: JobRow = field(default_factory=JobRow)
    """The settings for the scheduler."""
    pools: PoolPreferences | None = None
    """The pools between which the job may move. None: the job stays in its pool."""
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    kind: JobKind = JobKind.EXPERIMENT
    listing_has_figures: bool = field(default=False, metadata=keep_stored_name("lists_figures"))
    """Whether the experiment's listing row contains figures (experiment/listing.py). False for
    experiments of older releases.
    """
    has_growing_id_blocks: bool = field(default=False, metadata=keep_stored_name("grows_id_blocks"))
    """Whether the blocks of reserved trial ids grow with the number of trials. False for
    experiments of older releases.
    """
    listing_has_failures: bool = False
    """Whether the experiment's listing row says if a trial has failed (experiment/listing.py).
    False for experiments of older releases.
    """
    has_values_row: bool = False
    """Whether the experiment has a values row (experiment/values.py). False for experiments of
    older releases.
    """
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
    raises_events: bool = False
    """Whether webhooks announce the experiment (experiment/events.py). False for experiments of
    older releases.
    """
    webhooks: WebhookChoice | None = None
    """The section `integrations.webhook` of the configuration. None: no such section."""
    data_retention: DataRetention = field(default_factory=DataRetention)
    """The days for which logs and metrics are kept."""
    source: SourceCommit | None = None
    """The commit of the code. None: the configuration states no commit."""


@dataclass(frozen=True, slots=True)
class ActivateRequested:
    """Command: let the experiment's trials run."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Command: let the experiment's trials save checkpoints and release the slots."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Command: end the experiment after the trials have saved checkpoints."""


@dataclass(frozen=True, slots=True)
class KillRequested:
    """Command: end the experiment immediately."""


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Command: change settings that may change at any time.

    A value of None keeps the present value.
    """

    name: str | None = None
    description: str | None = None
    labels: tuple[str, ...] | None = None
    """The new labels, which replace all present labels."""
    max_slots: int | None = None
    """The most slots of the job. None removes the limit. It has no effect unless
    `max_slots_given`.
    """
    max_slots_given: bool = False
    retention: Retention | None = None
    """The new numbers of kept checkpoints. Equal numbers also request a collection."""
    weight: float | None = None
    priority: int | None = None
    """The new priority. Another priority resets the job's position to its time of submission,
    unless `position` or `keep_position` is set.
    """
    position: str | None = None
    """The position in the queue in us, as a decimal number (job_row.py)."""
    keep_position: bool = False
    """Whether the job keeps its position when its priority changes."""
    max_cost: float | None = None
    """The most that the experiment may cost, in dollars. None removes the limit. It has no effect
    unless `max_cost_given`.
    """
    max_cost_given: bool = False
    workspace: str | None = None
    project: str | None = None
    metadata: Mapping[str, object] | None = None
    """The new metadata, which replaces all present metadata."""
    revision: str | None = None
    """The revision of the texts that the user has read (`remarks_revision` in
    experiment/settings.py). The command is refused if the texts have another revision. None: no
    condition.
    """
    job_revision: str | None = None
    """The revision of the job's weight, priority and position that the sender has read
    (`order_revision` in job_row.py). Another revision refuses the command. None: no condition.
    """
    data_retention: DataRetention | None = None
    """The new days of logs and metrics. Days of None stay unchanged."""
    trial_log_days: tuple[int, int] | None = None
    """The id of a trial, and the days for which its own logs are kept."""


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Command: move the experiment to another resource pool."""

    pool: str


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The pool released the job to the next preferred pool.

    None of the job's trials has run in the pool since `since_ms`, although the job requested slots.
    """

    pool: str
    """The name of the pool that releases the job."""
    stay: int
    """The number of the job's stay, as in its job row."""
    since_ms: int
    """The start of the wait, in epoch ms."""
    reason: str
    """The reason for the release."""


@dataclass(frozen=True, slots=True)
class JobAudited:
    """The audit found a wrong job row of the experiment."""

    pool: str
    """The pool of the wrong row."""


@dataclass(frozen=True, slots=True)
class ArchiveRequested:
    """Command: leave the ended experiment out of lists."""


@dataclass(frozen=True, slots=True)
class UnarchiveRequested:
    """Command: include the experiment in lists again."""


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    """Command: delete the experiment with all checkpoints, trials and other data."""


@dataclass(frozen=True, slots=True)
class ContinueRequested:
    """Command: continue an ended experiment with the trials that did not complete.

    A value of None keeps the present value.
    """

    config: str | None = None
    """The stored configuration with the user's changes."""
    plan: SearchPlan | None = None
    """The plan of a search with a single trial and a greater length."""
    max_restarts: int | None = None
    limits_open_trials: bool = field(default=False, metadata=keep_stored_name("limited"))
    """Whether the trials that train at the same time are limited to max_concurrent_trials. False
    for commands of earlier versions.
    """


@dataclass(frozen=True, slots=True)
class OperationsPosted:
    """Command: apply the operations of the user's search method.

    Either all operations are applied, or none.
    """

    posted: PostedOperations


@dataclass(frozen=True, slots=True)
class CollectionEnded:
    """The collector processed the experiment's row in `collections`."""

    collection_number: int = field(metadata=keep_stored_name("generation"))
    """The number of the processed request, which the row stores."""
    failure: str = ""
    """Why the collector could not do everything. "": it did everything."""
    expires_ms: int = 0
    """The time to which the cluster's schedule postpones the deletion of expired data. 0: none."""


@dataclass(frozen=True, slots=True)
class DeletionContinued:
    """The experiment's own message: remove the stored parts that the last commit left."""


@dataclass(frozen=True, slots=True)
class ClusterRestored:
    """The cluster's state was replaced by an older copy.

    Reserved trial ids may have been used after the copy was made.
    """


@dataclass(frozen=True, slots=True)
class SearchContinued:
    """The experiment's own message: create or close more trials than the last commit could."""


@dataclass(frozen=True, slots=True)
class TrialValidationReported:
    """The trial reported a validation."""

    number: int
    units: float
    """The length that the trial had trained, in the configured unit."""
    metric: float | None
    """The searcher metric. None: the metric is missing or is not a finite number."""
    time: float | None = None
    """The time metric, if the search has one."""
    missing_metric_reason: str = field(default="", metadata=keep_stored_name("lack"))
    """Why the search cannot continue without the metric. "": the search can continue."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The other metrics of the validation by name, if its searcher metric is the trial's best."""


@dataclass(frozen=True, slots=True)
class TrialMetricsDiscarded:
    """The trial discarded validations of lost work, or validations that a later run repeated."""

    number: int
    best: float | None
    """The best remaining metric of the trial, or None."""


@dataclass(frozen=True, slots=True)
class TrialProgressReported:
    """The trial reported progress, in a training without a known number of batches."""

    number: int
    share: float
    """The share of the training that is done, from 0 to 1. If lengths are in epochs, the share of
    the assigned length.
    """
    units: float | None = None
    """The number of epochs done, if lengths are in epochs that only the trial can convert. Else
    None.
    """


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """The trial trained to a length and validated at that length."""

    number: int
    length: int
    """The length, in the configured unit."""
    metric: float
    """The searcher metric, or the worst possible metric if the metric is missing."""
    closed: bool
    """Whether the trial expects no further length, so that it needs no answer."""
    missing_metric_reason: str = field(default="", metadata=keep_stored_name("lack"))
    """Why the search cannot continue without the metric. "": the search can continue."""
    value: str = ""
    """The value that a custom search gets in place of the metric, as JSON."""


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial has ended."""

    number: int
    status: Status
    """The final status of the trial."""
    early_exit: str
    """The ExitReason of an early end. "": an ordinary end."""
    message: str = ""
    """The text for users about an end in ERROR or by `idle_timeout`. "": any other end."""
    run_generation: int = field(default=0, metadata=keep_stored_name("life"))
    """The run generation in which the trial ran."""


@dataclass(frozen=True, slots=True)
class TrialMetered:
    """The cost or the rate of a trial changed."""

    number: int
    epoch: int
    """The epoch of the trial's latest allocation."""
    cost_micros: int
    """The cost of slots that the trial no longer holds, in micro-dollars."""
    rate_micros: int
    """The rate of the slots that the trial holds, in micro-dollars per hour."""
    since_ms: int
    """The time from which the rate counts, in epoch ms."""
    holds_slots: bool
    """Whether the allocation still holds slots."""
    use: Use | None = None
    """The measured use of slots that the trial no longer holds. None: nothing was measured."""


@dataclass(frozen=True, slots=True)
class NoticeEnded:
    """An allocation has ended after an interruption notice for the machine."""

    number: int
    epoch: int
    """The epoch of the allocation."""
    outcome: str
    """The reaction of the trial, one of NOTICE_OUTCOMES."""


@dataclass(frozen=True, slots=True)
class CostCheckDue:
    """Timer: the cost of the experiment may soon reach `max_cost`."""


@dataclass(frozen=True, slots=True)
class TrialPlaced:
    """An allocation of a trial has slots. Sent only if the experiment has a `max_duration`."""

    number: int
    run_generation: int
    placed_ms: int
    """The time of the assignment, in epoch ms."""


@dataclass(frozen=True, slots=True)
class DurationEnded:
    """Timer: the time of `max_duration` is over for the experiment."""

    run_generation: int


@dataclass(frozen=True, slots=True)
class TrialSignaled:
    """A line of a trial's log matched a log policy with a signal."""

    number: int
    signal: str
    """The text of the signal."""
    run_generation: int = 0


ExperimentCommand = (
    ActivateRequested
    | PauseRequested
    | CancelRequested
    | KillRequested
    | SettingsChanged
    | PoolChanged
    | ArchiveRequested
    | UnarchiveRequested
    | DeleteRequested
    | ContinueRequested
    | OperationsPosted
    | ExpiryRequested
)
ExperimentMessage = (
    ExperimentSubmitted
    | ExperimentCommand
    | CollectionEnded
    | DeletionContinued
    | JobAudited
    | WaitEnded
    | ClusterRestored
    | SearchContinued
    | SuggestedPoints
    | SuggestionFailed
    | TrialValidationReported
    | TrialProgressReported
    | TrialMetricsDiscarded
    | TrialLengthReached
    | TrialEnded
    | TrialMetered
    | NoticeEnded
    | CostCheckDue
    | TrialPlaced
    | DurationEnded
    | DeadlineNear
    | BestValidationDue
    | TrialAlerted
    | TrialUsedLittle
    | WebhooksChanged
    | TrialSignaled
    | TrialLogMatched
    | ExpiryDue
)
