"""The messages to an experiment, and the API's commands.

For the messages of all actors: names are in the past tense; each message is plain JSON-able data,
versioned by its fields. A field added later has a default, so that a message written by older code
still loads. Trials are named by their cluster-wide id in addresses, and by their number (order of
creation, from 0) within their experiment. `life` is a run generation of the experiment: it counts
how often it was continued. `lack` says why a validation lacks the searcher's metric, "" where it
has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.era_rules import LENGTH_ERA, LifecycleRules
from control_plane.actors.job_row import JobRow
from control_plane.actors.pool_moves import PoolPreferences
from control_plane.actors.projects import UNCATEGORIZED
from control_plane.actors.records import (
    CheckpointRef,
    JobKind,
    Retention,
    Status,
    TrialSettings,
)
from control_plane.searchers.method import SuggestedPoints, SuggestionFailed
from control_plane.searchers.posted_operations import PostedOperations
from control_plane.searchers.search import SearchPlan


@dataclass(frozen=True, slots=True)
class ExperimentSubmitted:
    """The experiment was submitted, which creates the actor. `config` is the stored configuration,
    `code_sha256` names the model code, `warm_start` the checkpoint that its trials start from,
    `job` its settings for schedulers, `pools` those that it may move between, None for one alone;
    `kind` says what it is to its users. `lists_figures`: its row of the list has figures, and
    `grows_id_blocks`: it reserves few trial ids at first; neither is so of experiments that an
    older release created.
    """

    experiment_id: int
    owner: str
    name: str
    config: str
    code_sha256: str
    plan: SearchPlan
    settings: TrialSettings
    metric: str
    searcher: str
    paused: bool
    description: str = ""
    labels: tuple[str, ...] = ()
    job_id: str = ""
    test_mode: bool = False
    retention: Retention = field(default_factory=Retention)
    warm_start: CheckpointRef | None = None
    rules: LifecycleRules = LENGTH_ERA
    time_metric: str = ""
    job: JobRow = field(default_factory=JobRow)
    pools: PoolPreferences | None = None
    workspace: str = UNCATEGORIZED
    project: str = UNCATEGORIZED
    kind: JobKind = JobKind.EXPERIMENT
    lists_figures: bool = False
    grows_id_blocks: bool = False


@dataclass(frozen=True, slots=True)
class ActivateRequested:
    """Command: let the experiment's trials run."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Command: let the experiment's trials checkpoint and release their slots."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Command: end the experiment gracefully."""


@dataclass(frozen=True, slots=True)
class KillRequested:
    """Command: end the experiment now."""


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Command: new values of settings that may change at any time; None keeps the present value.
    `max_slots` and `max_cost` (dollars) count if `..._given`, since None lifts these limits.
    Another `priority` without a `position` (job_row.py) puts the job back at its time of
    submission, unless `keep_position`. `metadata` replaces all of it. With `revision`
    (settings.py), nothing changes where what people say of the experiment is of another.
    """

    name: str | None = None
    description: str | None = None
    labels: tuple[str, ...] | None = None
    max_slots: int | None = None
    max_slots_given: bool = False
    retention: Retention | None = None
    weight: float | None = None
    priority: int | None = None
    position: str | None = None
    keep_position: bool = False
    max_cost: float | None = None
    max_cost_given: bool = False
    workspace: str | None = None
    project: str | None = None
    metadata: Mapping[str, object] | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Command: run in another resource pool."""

    pool: str


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The pool released the experiment to the next of its preferred pools, for a reason.

    Since `since_ms` the experiment has waited for slots there and nothing of it has run. `stay` is
    that of its job row.
    """

    pool: str
    stay: int
    since_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobAudited:
    """The audit found that the job row in this pool is not what it should be."""

    pool: str


@dataclass(frozen=True, slots=True)
class ArchiveRequested:
    """Command: leave the experiment out of the list."""


@dataclass(frozen=True, slots=True)
class UnarchiveRequested:
    """Command: list the experiment again."""


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    """Command: delete the experiment with all it made."""


@dataclass(frozen=True, slots=True)
class ContinueRequested:
    """Command: continue an ended experiment with the trials that did not complete. None keeps a
    value; `config` is the stored configuration with the changes, `plan` the lengthened search of a
    single trial.
    """

    config: str | None = None
    plan: SearchPlan | None = None
    max_restarts: int | None = None


@dataclass(frozen=True, slots=True)
class OperationsPosted:
    """Command: apply the operations of the user's search method, all of them or none."""

    posted: PostedOperations


@dataclass(frozen=True, slots=True)
class CollectionEnded:
    """The collector has processed the collections row of this generation. `failure`: why it could
    not do all of it, "" where it did.
    """

    generation: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class DeletionContinued:
    """The experiment's message to itself: more parts are to be removed than one commit holds."""


@dataclass(frozen=True, slots=True)
class ClusterRestored:
    """The cluster's state is an older copy from now on. Ids that were reserved for the experiment's
    trials may have been used after the copy was made.
    """


@dataclass(frozen=True, slots=True)
class SearchContinued:
    """The experiment's message to itself: more trials are to be created than one commit holds."""


@dataclass(frozen=True, slots=True)
class TrialValidationReported:
    """The trial reported a validation; `units` is its training so far. `time` as in
    ValidationReported.
    """

    number: int
    units: float
    metric: float | None
    time: float | None = None
    lack: str = ""


@dataclass(frozen=True, slots=True)
class TrialProgressReported:
    """The trial, whose code decides how long it trains, reported the share in [0, 1] done; or of a
    length in epochs, which it alone can convert, and has trained `units` epochs.
    """

    number: int
    share: float
    units: float | None = None


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """The trial trained to `length` (configured unit) and validated there.

    `closed`: it expects no further length, so it needs no answer.
    `value` is what a custom search gets in the place of the metric, as JSON.
    """

    number: int
    length: int
    metric: float
    closed: bool
    lack: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial has ended, with a final status. `early_exit` is an ExitReason, or "" for an
    ordinary end; `life` is the one in which the trial ran.
    """

    number: int
    status: Status
    early_exit: str
    message: str = ""
    life: int = 0


@dataclass(frozen=True, slots=True)
class TrialMetered:
    """The trial's meter changed: it has cost `cost_micros` for all that has ended, and costs
    `rate_micros` an hour since `since_ms` for what runs of its allocation `epoch`, while that
    `holds_slots`.
    """

    number: int
    epoch: int
    cost_micros: int
    rate_micros: int
    since_ms: int
    holds_slots: bool


@dataclass(frozen=True, slots=True)
class NoticeEnded:
    """A notice that the machine of the trial's allocation `epoch` ends has had its outcome, one of
    NOTICE_OUTCOMES.
    """

    number: int
    epoch: int
    outcome: str


@dataclass(frozen=True, slots=True)
class CostCheckDue:
    """Timer: the experiment may reach its `max_cost` soon."""


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
    | TrialLengthReached
    | TrialEnded
    | TrialMetered
    | NoticeEnded
    | CostCheckDue
)
