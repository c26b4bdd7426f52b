"""Every message an actor receives. Names are past tense; each is plain JSON-able data, versioned
by its fields.

A field added later has a default, so that a message written by older code still loads. Trials are
named by their cluster-wide id in addresses and by their number (order of creation, from 0) within
their experiment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from control_plane.actors.lengths import Lengths
from control_plane.searchers.search import SearchPlan


class Status(StrEnum):
    """Of an experiment and, mirrored, of its trials."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"

    @property
    def final(self) -> bool:
        """Nothing leaves this status."""
        return self in _FINAL

    @property
    def stopping(self) -> bool:
        """On the way to a final status."""
        return self in _STOPPING


_FINAL = frozenset({Status.COMPLETED, Status.CANCELED, Status.ERROR})
_STOPPING = frozenset(status for status in Status if status.name.startswith("STOPPING"))


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What a trial needs of its experiment's configuration, the same for all its trials."""

    pool: str
    slots: int
    max_restarts: int
    smaller_is_better: bool
    lengths: Lengths
    submitted_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint; `path` is relative to the store's root."""

    uuid: str
    trial_id: int
    steps_completed: int
    path: str
    manifest_sha256: str


# To an experiment ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExperimentSubmitted:
    """Constructor. `config` is the stored configuration, `code_sha256` names the model code."""

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
class SearchContinued:
    """The search has trials to create that did not fit into the last commit."""


@dataclass(frozen=True, slots=True)
class TrialValidated:
    """Any validation with the searcher's metric; `units` is the trial's training so far."""

    number: int
    units: float
    metric: float | None


@dataclass(frozen=True, slots=True)
class TrialLengthReached:
    """The trial trained to `length` (configured unit) and validated there.

    `closed`: it expects no further length, so it needs no answer.
    """

    number: int
    length: int
    metric: float
    closed: bool


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """The trial is in a final status. `early_exit` is an ExitReason, or "" for an ordinary end."""

    number: int
    status: Status
    early_exit: str
    message: str = ""


ExperimentMessage = (
    ExperimentSubmitted
    | ActivateRequested
    | PauseRequested
    | CancelRequested
    | KillRequested
    | SearchContinued
    | TrialValidated
    | TrialLengthReached
    | TrialEnded
)

# To a trial ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """Constructor. `length` is in the configured unit; None: nothing to train yet."""

    trial_id: int
    experiment_id: int
    number: int
    request_id: str
    hparams: Mapping[str, object]
    seed: int
    length: int | None
    closed: bool
    experiment_status: Status
    settings: TrialSettings


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """The search has decided on the last length reached: train to `length`, or nothing for now
    (None).
    """

    length: int | None
    closed: bool


@dataclass(frozen=True, slots=True)
class ExperimentStatusChanged:
    """The experiment's new status."""

    status: Status


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """The pool placed the allocation of this epoch."""

    epoch: int
    agent: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRequested:
    """The pool wants the slots of this epoch's allocation back."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AllocationLost:
    """The allocation's agent is gone: no failure of the trial."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class ContainerStateReported:
    """PULLING, STARTING or RUNNING."""

    epoch: int
    state: str


@dataclass(frozen=True, slots=True)
class ValidationReported:
    """A validation at `steps` batches with the searcher's metric; None: no finite number."""

    epoch: int
    steps: int
    metric: float | None


@dataclass(frozen=True, slots=True)
class LengthReported:
    """The operation of length `length` batches is done; a metric of None is the worst there is."""

    epoch: int
    length: int
    metric: float | None


@dataclass(frozen=True, slots=True)
class CheckpointReported:
    """A complete checkpoint of this epoch."""

    epoch: int
    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EarlyExitReported:
    """The training code asks to end: INVALID_HP or USER_REQUESTED_STOP."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AllocationExited:
    """The allocation's processes are gone and every report before was delivered."""

    epoch: int
    reason: str
    code: int | None = None
    directive_revision: int = 0
    message: str = ""


TrialMessage = (
    TrialCreated
    | WorkAssigned
    | ExperimentStatusChanged
    | SlotsAssigned
    | PreemptionRequested
    | AllocationLost
    | ContainerStateReported
    | ValidationReported
    | LengthReported
    | CheckpointReported
    | EarlyExitReported
    | AllocationExited
)

# To a pool ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """Constructor and change of settings."""

    name: str


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial wants `slots` slots for its allocation `epoch`; `ticket` orders the queue."""

    trial_id: int
    epoch: int
    slots: int
    ticket: str


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """The allocation needs its slots or its place in the queue no more. `agent` is "" while
    queued.
    """

    trial_id: int
    epoch: int
    ticket: str
    agent: str


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent enrolled; `slots` are the ids of its slots."""

    agent: str
    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's lease lapsed: whatever ran there is lost."""

    agent: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AuditFound:
    """Allocations the pool still holds though their trials have let go of them."""

    stale: tuple[SlotsReleased, ...]


@dataclass(frozen=True, slots=True)
class SchedulingContinued:
    """More could start than one commit holds."""


PoolMessage = (
    PoolConfigured
    | SlotsRequested
    | SlotsReleased
    | AgentJoined
    | AgentLost
    | AuditFound
    | SchedulingContinued
)

# To an agent --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentEnrolled:
    """Constructor and re-enrolment: a new session of the agent. `slots`: (id, type, uuid, name)
    of each.
    """

    agent: str
    pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    version: str = ""


@dataclass(frozen=True, slots=True)
class AllocationPlaced:
    """The pool wants this allocation on the agent."""

    trial_id: int
    epoch: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocationRemoved:
    """The allocation has ended and may be forgotten."""

    trial_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AgentDeclaredLost:
    """The pool gave the agent of this epoch up."""

    epoch: int


AgentMessage = AgentEnrolled | AllocationPlaced | AllocationRemoved | AgentDeclaredLost
