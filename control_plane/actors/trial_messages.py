"""Every message to a trial, in the past tense; see `experiment_messages` for what holds of all."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """Constructor. `length` is in the configured unit; None: nothing to train yet.
    Trial `parent_id` hands over the checkpoint to start from.
    """

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
    parent_id: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """Trial `by`, a copy of this one, is to start from its latest checkpoint."""

    by: int


@dataclass(frozen=True, slots=True)
class CheckpointHandedOver:
    """The checkpoint to start from, of trial `by`; None: it has none."""

    by: int
    checkpoint: CheckpointRef | None


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
class TrialMoved:
    """The experiment runs in another resource pool now."""

    pool: str


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
    `instead`: the newest one that is left, "" if there is none. `whole`: nothing is to stay of the
    experiment.
    """

    uuids: tuple[str, ...]
    instead: str = ""
    whole: bool = False


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
    (None). `stopped`: the trial is to end at once, saving its work.
    """

    length: int | None
    closed: bool
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ExperimentStatusChanged:
    """The experiment's new status. `forced`: what runs is to be stopped at once."""

    status: Status
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """The pool placed the allocation of this epoch: one place for each of its nodes."""

    epoch: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRequested:
    """The pool wants the slots of this epoch's allocation back; `forced`: at once."""

    epoch: int
    reason: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class AllocationLost:
    """Agent `agent` of the allocation is gone, "": all of them. That is no failure of the trial.
    `heard_ms`: when it was last heard of, None if nobody knows.
    """

    epoch: int
    reason: str
    agent: str = ""
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerStateReported:
    """PULLING, STARTING or RUNNING, on the node of that rank, one of `nodes`."""

    epoch: int
    state: str
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class ValidationReported:
    """A validation at `steps` batches with the searcher's metric; None: no finite number. `time`
    is its time metric, where the search has one; `lack` says why a search that needs both cannot
    go on. It comes from one of `nodes` nodes, each of which may report it.
    """

    epoch: int
    steps: int
    metric: float | None
    time: float | None = None
    lack: str = ""
    nodes: int = 1


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
    """The processes of a node, of that rank among `nodes`, are gone, and every report before was
    delivered. `notice`: why its machine was about to end, "" if it was not.
    """

    epoch: int
    reason: str
    code: int | None = None
    directive_revision: int = 0
    message: str = ""
    node_rank: int = 0
    nodes: int = 1
    notice: str = ""


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
    | CheckpointWanted
    | CheckpointHandedOver
    | TrialContinued
    | TrialKillRequested
    | TrialMoved
    | RestartDue
    | CheckpointsUnwanted
    | CheckpointFilesDeleted
    | TrialDeleted
    | WorkAssigned
    | ExperimentStatusChanged
    | AllocationMessage
)
