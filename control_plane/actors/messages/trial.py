"""The messages to a trial. messages/experiment.py has the rules for the messages of all actors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.messages.trial_deletions import (
    PartialDeletionEnded,
    PartialDeletionRequested,
)
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.messages.trial_gang_checks import GangCheckReported, GangMeetingDelayed
from control_plane.actors.messages.trial_hangs import HangReported, HangTimeOver, StacksReported
from control_plane.actors.messages.trial_logs import LogPolicyMatched
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings
from control_plane.rows.stored_fields import keep_stored_name


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """The experiment created the trial. This message creates the actor."""

    trial_id: int
    experiment_id: int
    number: int
    """The number of the trial within its experiment."""
    request_id: str
    """The id that the search gave to the request for this trial."""
    hparams: Mapping[str, object]
    """The hyperparameters by name."""
    seed: int
    """The seed of the trial's random numbers."""
    length: int | None
    """The length to train to, in the configured unit. None: no training yet."""
    closed: bool
    """Whether the search will assign no further length."""
    experiment_status: Status
    """The status of the experiment at the creation."""
    settings: TrialSettings
    """The settings that all trials of the experiment share."""
    run_generation: int = field(default=0, metadata=keep_stored_name("life"))
    """The run generation of the experiment."""
    parent_id: int | None = None
    """The id of the trial whose checkpoint this trial starts from. None: no such trial."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A copy of this trial requested this trial's latest checkpoint, as a start."""

    copy_id: int = field(metadata=keep_stored_name("by"))
    """The id of the copy."""


@dataclass(frozen=True, slots=True)
class CheckpointHandedOver:
    """The parent trial answered the request for the latest checkpoint."""

    parent_id: int = field(metadata=keep_stored_name("by"))
    """The id of the parent trial."""
    checkpoint: CheckpointRef | None
    """The checkpoint from which this trial starts. None: the parent trial has no checkpoint."""


@dataclass(frozen=True, slots=True)
class TrialContinued:
    """The experiment and this trial were continued.

    The trial starts from its latest checkpoint, with its restarts counted from 0.
    """

    run_generation: int = field(metadata=keep_stored_name("life"))
    """The new run generation of the experiment."""
    settings: TrialSettings
    """The settings of the trial from now on."""
    length: int | None = None
    """The new length to train to, in the configured unit. None: the present length."""


@dataclass(frozen=True, slots=True)
class TrialKillRequested:
    """Command: end only this trial, immediately."""


@dataclass(frozen=True, slots=True)
class TrialMoved:
    """The experiment moved to another resource pool."""

    pool: str
    """The name of the new pool."""
    keeps_slots: bool = False
    """Whether a trial with slots keeps them. Its next request then goes to the new pool."""


@dataclass(frozen=True, slots=True)
class TerminationOverdue:
    """Timer: an allocation should have ended by now.

    The allocation was asked to stop, or its code refused the hyperparameters.
    """

    epoch: int
    """The epoch of the allocation."""


@dataclass(frozen=True, slots=True)
class DurationExceeded:
    """Timer: the run of a command, notebook or shell has reached `max_duration`, or a trial of an
    experiment has reached `max_trial_duration`.
    """

    epoch: int
    """The epoch of the allocation."""


@dataclass(frozen=True, slots=True)
class RestartDue:
    """Timer: the delay after a failed start of an allocation is over."""

    epoch: int
    """The epoch of the allocation."""


COLLECTED_MAX = 12
"""The most checkpoints in one message of the collector.

Each checkpoint is a part and two rows of a commit. A commit has at most 100 operations, including
those for the messages that it folds.
"""


@dataclass(frozen=True, slots=True)
class CheckpointDeletionRequested:
    """Command of the collector: mark checkpoints as DELETING.

    Pinned checkpoints are skipped, and so is the latest checkpoint of a trial that has not ended.
    The reply is the tuple of the checkpoints that are DELETING now.
    """

    uuids: tuple[str, ...]
    """The UUIDs of at most COLLECTED_MAX checkpoints."""
    fallback_uuid: str = field(default="", metadata=keep_stored_name("instead"))
    """The UUID of the latest checkpoint that remains. "": no checkpoint remains."""
    deletes_experiment: bool = field(default=False, metadata=keep_stored_name("whole"))
    """Whether the whole experiment is deleted."""


@dataclass(frozen=True, slots=True)
class CheckpointFilesDeleted:
    """The collector removed the files of checkpoints."""

    uuids: tuple[str, ...]
    """The UUIDs of at most COLLECTED_MAX checkpoints."""


@dataclass(frozen=True, slots=True)
class TrialDeleted:
    """The data of the trial was deleted with the experiment."""


@dataclass(frozen=True, slots=True)
class WorkAssigned:
    """The search decided on the latest length that the trial reached."""

    length: int | None
    """The next length to train to, in the configured unit. None: wait for now."""
    closed: bool
    """Whether the search will assign no further length."""
    stopped: bool = False
    """Whether the trial is to save its work and end immediately."""


@dataclass(frozen=True, slots=True)
class ExperimentStatusChanged:
    """The experiment has a new status."""

    status: Status
    forced: bool = False
    """Whether the trial's allocation is to be stopped immediately."""


@dataclass(frozen=True, slots=True)
class SlotsAssigned:
    """The pool assigned slots to the trial's allocation."""

    epoch: int
    """The epoch of the allocation."""
    places: tuple[Place, ...]
    """One place for each node, in the order of ranks."""


@dataclass(frozen=True, slots=True)
class PreemptionRequested:
    """The pool or the experiment asked for the slots of an allocation."""

    epoch: int
    """The epoch of the allocation."""
    reason: str
    """The reason, for users."""
    forced: bool = False
    """Whether the allocation is stopped immediately, without saving its work."""


@dataclass(frozen=True, slots=True)
class AllocationLost:
    """An agent of the allocation was lost. The loss is no failure of the trial."""

    epoch: int
    """The epoch of the allocation."""
    reason: str
    """The reason of the loss, for users."""
    agent: str = ""
    """The id of the lost agent. "": all agents of the allocation."""
    last_contact_ms: int | None = field(default=None, metadata=keep_stored_name("heard_ms"))
    """The time of the agent's last sign of life, in epoch ms. None: unknown."""


FIRST_STEP: Final = "FIRST_STEP"
"""The state of a run that has trained its first step.

Only a run that replaces another run reports this state. It is no AllocationState, so that older
versions ignore the message.
"""


@dataclass(frozen=True, slots=True)
class ContainerStateReported:
    """An agent reported the state of a node's container, or a trial reported the first step."""

    epoch: int
    """The epoch of the allocation."""
    state: str
    """PULLING, STARTING, RUNNING or FIRST_STEP. Other states are ignored."""
    node_rank: int = 0
    """The rank of the node."""
    nodes: int = 1
    """The number of the allocation's nodes."""
    durations: Mapping[str, int] = field(default_factory=dict)
    """Durations in ms by one of REPORTED_DURATIONS (actors/replacement.py). Empty: not
    reported.
    """
    early_pull_failure: str = ""
    """Why the node could not pull the image before the assignment. "": no such failure."""


@dataclass(frozen=True, slots=True)
class ValidationReported:
    """The training code reported a validation.

    Each node of a gang may report the same validation.
    """

    epoch: int
    """The epoch of the allocation."""
    steps: int
    """The number of batches that the trial had trained."""
    metric: float | None
    """The searcher metric. None: the metric is missing or is not a finite number."""
    time: float | None = None
    """The time metric, if the search has one."""
    missing_metric_reason: str = field(default="", metadata=keep_stored_name("lack"))
    """Why the validation lacks a metric that the search needs to continue. "": the search can
    continue.
    """
    nodes: int = 1
    """The number of the allocation's nodes."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The other metrics of the validation by name: finite numbers, at most VALUES_MAX."""


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The training code reported the progress of the training."""

    epoch: int
    """The epoch of the allocation."""
    share: float
    """The share of the training that is done, from 0 to 1. If the trial `counts_epochs`, the share
    of the assigned length.
    """


@dataclass(frozen=True, slots=True)
class LengthReached:
    """The trial trained to the assigned length and validated at that length."""

    epoch: int
    """The epoch of the allocation."""
    length: int
    """The length in batches, or in epochs if the trial `counts_epochs`."""
    metric: float | None
    """The searcher metric. None: replaced by the worst possible metric."""
    missing_metric_reason: str = field(default="", metadata=keep_stored_name("lack"))
    """Why the validation has no metric, so that the search cannot continue. "": the search can
    continue.
    """
    value: str = ""
    """The value that a custom search gets in place of the metric, as JSON."""


@dataclass(frozen=True, slots=True)
class CheckpointReported:
    """The allocation wrote a complete checkpoint."""

    epoch: int
    """The epoch of the allocation."""
    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    """The number of files."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """The metadata that the training code set."""
    metric: float | None = None
    """The metric of the validation at the checkpoint's batch, if that validation came before the
    checkpoint. Else None.
    """


FALLBACKS_MAX = 12
"""The most fallbacks in one report of damage."""


@dataclass(frozen=True, slots=True)
class CheckpointDamageReported:
    """The allocation could not restore the checkpoint of its start.

    The stored files differ from the written ones, unless `is_load_failure`.
    """

    epoch: int
    """The epoch of the allocation."""
    uuid: str
    """The UUID of the checkpoint."""
    cause: str
    """The description of the damage, for users."""
    fallbacks: tuple[str, ...] = ()
    """At most FALLBACKS_MAX complete checkpoints of the trial from which it could start instead,
    the best choice first. The list is from the time when the report was accepted.
    """
    is_load_failure: bool = False
    """Whether the files are unchanged, and the trial's code raised an exception while it loaded
    them.
    """


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """Command: withdraw the damage of a checkpoint. All stored files are as they were written.

    The owner or an admin has had all files read. The reply is the state of the checkpoint's record,
    "" if the trial has no such record.
    """

    uuid: str


@dataclass(frozen=True, slots=True)
class CheckpointUploaded:
    """Command: record a complete checkpoint that a user uploaded for this trial.

    The reply is the state of the checkpoint's record, "" if another trial has the checkpoint's
    UUID.
    """

    checkpoint: CheckpointRef
    size_bytes: int
    files: int
    """The number of files."""
    user: str
    """The name of the user."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """The metadata that the user set."""


@dataclass(frozen=True, slots=True)
class EarlyExitReported:
    """The training code announced an early exit."""

    epoch: int
    """The epoch of the allocation."""
    reason: str
    """An ExitReason: refused hyperparameters, or USER_REQUESTED_STOP."""


CUT: Final = "cut"
"""The notice outcome of a trial that ended before it could react."""
NOTICE_OUTCOMES: Final = ("saved", "finished", "kept", CUT)
"""The reactions of trials to an interruption notice:
- saved: the trial saved a checkpoint that it began after the notice.
- finished: the trial finished a checkpoint that it had begun before the notice.
- kept: the trial exited and kept its last checkpoint, for lack of need or time.
- cut: the trial ended before it could exit by itself.
"""


IDLE_TIMEOUT = "idle_timeout"


@dataclass(frozen=True, slots=True)
class AllocationExited:
    """The processes of a node have exited. All reports of the node were delivered before."""

    epoch: int
    """The epoch of the allocation."""
    reason: str
    """The reason of the exit, such as `completed`, `preempted`, `errored` or `killed`."""
    code: int | None = None
    """The exit code, if known."""
    directive_revision: int = 0
    """The revision of the last directive that the trial received."""
    message: str = ""
    """The text for users about a failure."""
    node_rank: int = 0
    """The rank of the node."""
    nodes: int = 1
    """The number of the allocation's nodes."""
    notice: str = ""
    """The text of an interruption notice for the machine. "": no notice."""
    notice_outcome: str = ""
    """The reaction to the notice, one of NOTICE_OUTCOMES. "": neither the trial nor its agent
    reported it.
    """
    is_permanent: bool = field(default=False, metadata=keep_stored_name("lasting"))
    """Whether the trial's code or image cannot be loaded, so that a restart would fail, too."""
    notice_age_ms: int = 0
    """The time in ms from the notice to the exit, by the agent's clock. 0: not reported."""
    limit: str = ""
    """IDLE_TIMEOUT if the agent has ended an idle run, otherwise ""."""
    fingerprint: str = ""
    """The digest of the place and the error of a failure, in hexadecimal digits. "": not known, or
    the error may pass.
    """


AllocationMessage = (
    SlotsAssigned
    | PreemptionRequested
    | AllocationLost
    | ContainerStateReported
    | EarlyExitReported
    | AlertReported
    | CheckpointDamageReported
    | LogPolicyMatched
    | AllocationExited
    | ValidationReported
    | ProgressReported
    | LengthReached
    | CheckpointReported
    | TerminationOverdue
    | DurationExceeded
    | HangReported
    | StacksReported
    | HangTimeOver
    | GangCheckReported
    | GangMeetingDelayed
    | UseReported
    | LowUseReported
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
    | DataExpired
    | WorkAssigned
    | ExperimentStatusChanged
    | AllocationMessage
)
