"""The messages to a trial; messages/experiment.py says what holds for those of all actors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """The experiment created the trial, which creates the actor. `length` is in the configured
    unit; None: nothing to train yet. Trial `parent_id` hands over the checkpoint to start from.
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
class CheckpointRequested:
    """Trial `by`, a copy of this one, requests its latest checkpoint to start from."""

    by: int


@dataclass(frozen=True, slots=True)
class CheckpointHandedOver:
    """Trial `by` handed over the checkpoint to start from; None: it has none."""

    by: int
    checkpoint: CheckpointRef | None


@dataclass(frozen=True, slots=True)
class TrialContinued:
    """The experiment was continued, and this trial with it, from its latest checkpoint and with no
    restart counted. `length` as in TrialCreated; None: as before.
    """

    life: int
    settings: TrialSettings
    length: int | None = None


@dataclass(frozen=True, slots=True)
class TrialKillRequested:
    """Command: end this trial alone, now."""


@dataclass(frozen=True, slots=True)
class TrialMoved:
    """The experiment was moved to another resource pool. `keeps_slots`: a trial that has slots
    keeps them, and asks there only for its next ones.
    """

    pool: str
    keeps_slots: bool = False


@dataclass(frozen=True, slots=True)
class TerminationOverdue:
    """Timer: the allocation of this epoch should have ended by now, after a request to stop or
    having nothing left to do.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class RestartDue:
    """Timer: the delay is over after the allocation of this epoch could not be started."""

    epoch: int


# The most checkpoints in one message of the collector: each takes a part and two rows of a commit,
# which holds 100 operations with the mail that it folds.
COLLECTED_MAX = 12


@dataclass(frozen=True, slots=True)
class CheckpointDeletionRequested:
    """Command of the collector: mark these checkpoints as DELETING, at most COLLECTED_MAX. The
    reply is the tuple of those that are so now; pinned ones and the newest of a trial that has not
    ended stay. `instead`: the newest one that is left, "" if there is none. `whole`: the experiment
    is deleted with all it made.
    """

    uuids: tuple[str, ...]
    instead: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointFilesDeleted:
    """The collector removed the files of these checkpoints, at most COLLECTED_MAX."""

    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartialDeletionRequested:
    """Command: delete the files of a checkpoint that `patterns` choose, of which `earlier` ones
    were given before. `files` and `size_bytes`: what is left after it. `instead` as in
    CheckpointDeletionRequested. The reply is whether they are being deleted.
    """

    uuid: str
    patterns: tuple[str, ...]
    earlier: tuple[str, ...]
    files: int
    size_bytes: int
    instead: str = ""


@dataclass(frozen=True, slots=True)
class PartialDeletionEnded:
    """The collector removed the files of a checkpoint that these patterns choose."""

    uuid: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrialDeleted:
    """The trial was deleted with its experiment, and everything it left is gone."""


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """The search decided on the latest length reached: train to `length`, or wait for now (None).
    `closed`: no further length will come. `stopped`: the trial is to save its work and end
    immediately.
    """

    length: int | None
    closed: bool
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ExperimentStatusChanged:
    """The experiment has a new status. `forced`: what runs is to be stopped immediately."""

    status: Status
    forced: bool = False


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """The pool assigned slots to the allocation of this epoch: one place for each of its nodes."""

    epoch: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRequested:
    """The pool wants the slots of this epoch's allocation back; `forced`: immediately."""

    epoch: int
    reason: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class AllocationLost:
    """Agent `agent` of the allocation was lost, "": all of them. This is no failure of the trial.
    `heard_ms`: when the agent was last heard of, None if unknown.
    """

    epoch: int
    reason: str
    agent: str = ""
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerStateReported:
    """The container on node `node_rank` of `nodes` is PULLING, STARTING or RUNNING."""

    epoch: int
    state: str
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class ValidationReported:
    """A validation at `steps` batches with the searcher's metric; None: no finite number. `time`
    is its time metric, where the search has one; `lack` says why a search that needs both cannot
    go on. Each of the `nodes` nodes may report it.
    """

    epoch: int
    steps: int
    metric: float | None
    time: float | None = None
    lack: str = ""
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The training code reported the share in [0, 1] of its training that is done; of the assigned
    length, where the trial `counts_epochs`.
    """

    epoch: int
    share: float


@dataclass(frozen=True, slots=True)
class LengthReached:
    """The trial trained to the assigned `length` in batches, or in epochs where it `counts_epochs`.
    A metric of None is the worst there is. With a `lack` there is no metric, for that reason, and
    the search cannot go on.
    `value` is what a custom search gets in the place of the metric, as JSON.
    """

    epoch: int
    length: int
    metric: float | None
    lack: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointReported:
    """The allocation of this epoch has written a complete checkpoint. `metric`: that of its own
    validation, where that came before and others may have come since.
    """

    epoch: int
    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    metadata: Mapping[str, object] = field(default_factory=dict)
    metric: float | None = None


FALLBACKS_MAX = 12


@dataclass(frozen=True, slots=True)
class CheckpointDamageReported:
    """The allocation of this epoch could not restore checkpoint `uuid`, whose stored files are not
    those that were written. `fallbacks`: at most FALLBACKS_MAX complete checkpoints of the trial,
    when the report was accepted, in the order in which it would go on from them.
    """

    epoch: int
    uuid: str
    cause: str
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """Command: the owner or an admin read all stored files of checkpoint `uuid`, and they are those
    that were written, so that it is not damaged. The reply is the state of its record, "" if it has
    none.
    """

    uuid: str


@dataclass(frozen=True, slots=True)
class CheckpointUploaded:
    """Command: record a complete checkpoint that `user` uploaded for this trial. The reply is the
    state of its record, "" if another trial has its UUID.
    """

    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    user: str
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EarlyExitReported:
    """The training code asked to end: INVALID_HP or USER_REQUESTED_STOP."""

    epoch: int
    reason: str


CUT: Final = "cut"
NOTICE_OUTCOMES: Final = ("saved", "finished", "kept", CUT)
"""How the notice of a machine's end went for a trial: in a checkpoint begun after it, in one begun
before it, in neither because there was no need or no time, or in an end before the trial left."""


@dataclass(frozen=True, slots=True)
class AllocationExited:
    """The processes of node `node_rank` of `nodes` have exited, after all of their reports were
    delivered. `notice`: why its machine was about to end, "" if it was not. `notice_outcome`: how
    that went, one of NOTICE_OUTCOMES, "" unless the trial or its agent has said so.
    """

    epoch: int
    reason: str
    code: int | None = None
    directive_revision: int = 0
    message: str = ""
    node_rank: int = 0
    nodes: int = 1
    notice: str = ""
    notice_outcome: str = ""


AllocationMessage = (
    SlotsAssigned
    | PreemptionRequested
    | AllocationLost
    | ContainerStateReported
    | EarlyExitReported
    | CheckpointDamageReported
    | AllocationExited
    | ValidationReported
    | ProgressReported
    | LengthReached
    | CheckpointReported
    | TerminationOverdue
)
TrialMessage = (
    TrialCreated
    | CheckpointRequested
    | CheckpointHandedOver
    | TrialContinued
    | TrialKillRequested
    | TrialMoved
    | RestartDue
    | CheckpointDeletionRequested
    | CheckpointFilesDeleted
    | PartialDeletionRequested
    | PartialDeletionEnded
    | CheckpointUploaded
    | CheckpointVerified
    | TrialDeleted
    | WorkAssigned
    | ExperimentStatusChanged
    | AllocationMessage
)
