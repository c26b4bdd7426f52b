"""Every message an actor receives. Names are past tense; each is plain JSON-able data, versioned
by its fields.

A field added later has a default, so that a message written by older code still loads. Trials are
named by their cluster-wide id in addresses and by their number (order of creation, from 0) within
their experiment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.experiment_messages import ActivateRequested as ActivateRequested
from control_plane.actors.experiment_messages import ArchiveRequested as ArchiveRequested
from control_plane.actors.experiment_messages import CancelRequested as CancelRequested
from control_plane.actors.experiment_messages import CollectionEnded as CollectionEnded
from control_plane.actors.experiment_messages import ContinueRequested as ContinueRequested
from control_plane.actors.experiment_messages import DeleteRequested as DeleteRequested
from control_plane.actors.experiment_messages import DeletionContinued as DeletionContinued
from control_plane.actors.experiment_messages import ExperimentCommand as ExperimentCommand
from control_plane.actors.experiment_messages import ExperimentMessage as ExperimentMessage
from control_plane.actors.experiment_messages import ExperimentSubmitted as ExperimentSubmitted
from control_plane.actors.experiment_messages import KillRequested as KillRequested
from control_plane.actors.experiment_messages import PauseRequested as PauseRequested
from control_plane.actors.experiment_messages import SearchContinued as SearchContinued
from control_plane.actors.experiment_messages import SettingsChanged as SettingsChanged
from control_plane.actors.experiment_messages import TrialEnded as TrialEnded
from control_plane.actors.experiment_messages import TrialLengthReached as TrialLengthReached
from control_plane.actors.experiment_messages import TrialValidated as TrialValidated
from control_plane.actors.experiment_messages import UnarchiveRequested as UnarchiveRequested
from control_plane.actors.records import CheckpointRef as CheckpointRef
from control_plane.actors.records import Retention as Retention
from control_plane.actors.records import Status as Status
from control_plane.actors.records import TrialSettings as TrialSettings
from control_plane.actors.slots import OPEN, Availability

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
    life: int = 0


@dataclass(frozen=True, slots=True)
class TrialContinued:
    """The experiment goes on, in the given life of it, and this trial with it, from its latest
    checkpoint and with restarts to spare. `length` as in TrialCreated; None: as before.
    """

    life: int
    settings: TrialSettings
    length: int | None = None


@dataclass(frozen=True, slots=True)
class TrialKillRequested:
    """Command: end this trial alone, now."""


@dataclass(frozen=True, slots=True)
class SlotsLimited:
    """The experiment's new max_slots."""

    max_slots: int | None


@dataclass(frozen=True, slots=True)
class TerminationOverdue:
    """The allocation of this epoch was told to stop or had nothing left to do, and is still there
    after the time that it had to end.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class RestartDue:
    """The allocation of this epoch could not be started; the time to wait since is over."""

    epoch: int


# Checkpoints in one message of the collector: each is a part and two rows of a commit, which holds
# 100 operations with whatever mail it folds.
COLLECTED_MAX = 12


@dataclass(frozen=True, slots=True)
class CheckpointsUnwanted:
    """Command of the collector: let go of these, at most COLLECTED_MAX. The reply is the tuple of
    those that are DELETING now; pinned ones and the newest of a trial that has not ended stay.
    `instead`: the newest one that is left, "" if there is none.
    """

    uuids: tuple[str, ...]
    instead: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFilesDeleted:
    """The files of these are gone; at most COLLECTED_MAX."""

    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrialDeleted:
    """The experiment is deleted, and everything the trial left is gone."""


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """The search has decided on the last length reached: train to `length`, or nothing for now
    (None).
    """

    length: int | None
    closed: bool


@dataclass(frozen=True, slots=True)
class ExperimentStatusChanged:
    """The experiment's new status. `forced`: what runs is to be stopped at once."""

    status: Status
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """The pool placed the allocation of this epoch."""

    epoch: int
    agent: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRequested:
    """The pool wants the slots of this epoch's allocation back; `forced`: at once."""

    epoch: int
    reason: str
    forced: bool = False


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
    """The operation of length `length` batches is done; a metric of None is the worst there is.
    With a `lack`, which says why, there is none at all, and the search cannot go on.
    """

    epoch: int
    length: int
    metric: float | None
    lack: str = ""


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


AllocationMessage = (
    SlotsAssigned
    | PreemptionRequested
    | AllocationLost
    | ContainerStateReported
    | EarlyExitReported
    | AllocationExited
    | ValidationReported
    | LengthReported
    | CheckpointReported
    | TerminationOverdue
)
TrialMessage = (
    TrialCreated
    | TrialContinued
    | TrialKillRequested
    | SlotsLimited
    | RestartDue
    | CheckpointsUnwanted
    | CheckpointFilesDeleted
    | TrialDeleted
    | WorkAssigned
    | ExperimentStatusChanged
    | AllocationMessage
)

# To a pool ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """Constructor and change of settings."""

    name: str


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial wants `slots` slots for its allocation `epoch`; `ticket` orders the queue.

    `group` is its experiment's id, 0 for none, which may hold `max_slots` slots, None: any number.
    """

    trial_id: int
    epoch: int
    slots: int
    ticket: str
    group: int = 0
    max_slots: int | None = None


@dataclass(frozen=True, slots=True)
class GroupLimited:
    """An experiment's limit was changed while it ran: the latest word on a group counts."""

    group: int
    max_slots: int | None


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """The allocation needs its slots or its place in the queue no more. `agent` is "" while
    queued; `group` as in the request.
    """

    trial_id: int
    epoch: int
    ticket: str
    agent: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent enrolled; `slots` are the ids of its slots."""

    agent: str
    epoch: int
    slots: tuple[int, ...]
    availability: Availability = OPEN


@dataclass(frozen=True, slots=True)
class AgentAvailabilityChanged:
    """Other slots of the agent take work than before."""

    agent: str
    epoch: int
    availability: Availability


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
    | GroupLimited
    | SlotsReleased
    | AgentJoined
    | AgentAvailabilityChanged
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


@dataclass(frozen=True, slots=True)
class AgentEnableRequested:
    """Command: the agent, or its slot `slot`, takes work again."""

    slot: int | None = None


@dataclass(frozen=True, slots=True)
class AgentDisableRequested:
    """Command: the agent, or its slot `slot`, takes no work. What runs on the agent leaves now, or
    with `drain` when it is done; a slot is left now.
    """

    slot: int | None = None
    drain: bool = False


AgentMessage = (
    AgentEnrolled
    | AllocationPlaced
    | AllocationRemoved
    | AgentDeclaredLost
    | AgentEnableRequested
    | AgentDisableRequested
)
