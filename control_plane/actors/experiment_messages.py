"""Every message to an experiment, the API's commands among them.

Of the messages to all actors: names are past tense; each is plain JSON-able data, versioned by its
fields. A field added later has a default, so that a message written by older code still loads.
Trials are named by their cluster-wide id in addresses and by their number (order of creation, from
0) within their experiment.
"""

from dataclasses import dataclass, field

from control_plane.actors.jobs import JobRow
from control_plane.actors.records import CheckpointRef, Retention, Status, TrialSettings
from control_plane.actors.rules import LENGTH_ERA, LifecycleRules
from control_plane.searchers.method import Suggested, SuggestionFailed
from control_plane.searchers.posted import Posted
from control_plane.searchers.search import SearchPlan


@dataclass(frozen=True, slots=True)
class ExperimentSubmitted:
    """Constructor. `config` is the stored configuration, `code_sha256` names the model code,
    `warm_start` the checkpoint that its trials start from, `job` what schedulers are to know of it.
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


@dataclass(frozen=True, slots=True)
class ActivateRequested:
    """Command: let its trials run."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Command: let its trials checkpoint and give up their slots."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Command: end it gracefully."""


@dataclass(frozen=True, slots=True)
class KillRequested:
    """Command: end it now."""


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Command: new values of what may change at any time; None keeps the present one, but for
    `max_slots` and `max_cost` (dollars), which count if they are `given`, since None lifts them.
    Another `priority` without a `position` (see jobs.py) goes back to the time of submission,
    unless `keep_position`.
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


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Command: run in another resource pool."""

    pool: str


@dataclass(frozen=True, slots=True)
class JobAudited:
    """What this pool knows of the experiment's job is not what it should be."""

    pool: str


@dataclass(frozen=True, slots=True)
class ArchiveRequested:
    """Command: leave it out of the list."""


@dataclass(frozen=True, slots=True)
class UnarchiveRequested:
    """Command: list it again."""


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    """Command: remove it with all it made."""


@dataclass(frozen=True, slots=True)
class ContinueRequested:
    """Command: let the trials that did not complete go on. What is None stays; `config` is the
    stored configuration with the changes, `plan` the lengthened search of a single trial.
    """

    config: str | None = None
    plan: SearchPlan | None = None
    max_restarts: int | None = None


@dataclass(frozen=True, slots=True)
class OperationsPosted:
    """Command: do what the user's search method asks for, all of it or nothing."""

    posted: Posted


@dataclass(frozen=True, slots=True)
class CollectionEnded:
    """The collector is done with the collections row of this generation. `failure`: what it could
    not do, "" if there is nothing.
    """

    generation: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class DeletionContinued:
    """The experiment has more parts to remove than fitted into the last commit."""


@dataclass(frozen=True, slots=True)
class SearchContinued:
    """The search has trials to create that did not fit into the last commit."""


@dataclass(frozen=True, slots=True)
class TrialValidated:
    """Any validation with the searcher's metric; `units` is the trial's training so far. `time` and
    `lack` as in ValidationReported.
    """

    number: int
    units: float
    metric: float | None
    time: float | None = None
    lack: str = ""


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """The trial trained to `length` (configured unit) and validated there.

    `closed`: it expects no further length, so it needs no answer. `lack`: why the validation lacks
    the searcher's metric, "" where it has it.
    """

    number: int
    length: int
    metric: float
    closed: bool
    lack: str = ""


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial is in a final status. `early_exit` is an ExitReason, or "" for an ordinary end;
    `life` is that of the experiment in which the trial ran.
    """

    number: int
    status: Status
    early_exit: str
    message: str = ""
    life: int = 0


@dataclass(frozen=True, slots=True)
class TrialMetered:
    """What the trial costs: `cost_micros` for all that has ended, and `rate_micros` (an hour) since
    `since_ms` for what runs of its allocation `epoch`, as long as that `holds_slots`.
    """

    number: int
    epoch: int
    cost_micros: int
    rate_micros: int
    since_ms: int
    holds_slots: bool


@dataclass(frozen=True, slots=True)
class CostLookDue:
    """Timer: what runs may come to the limit of the costs."""


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
    | SearchContinued
    | Suggested
    | SuggestionFailed
    | TrialValidated
    | TrialLengthReached
    | TrialEnded
    | TrialMetered
    | CostLookDue
)
