"""The state of a trial: the head, with the trial's only allocation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.records import CheckpointRef, Place, Snapshot, Status, TrialSettings
from control_plane.actors.replacement import Replacement
from control_plane.actors.use import Use
from control_plane.rows.stored_fields import keep_stored_name
from control_plane.searchers.method import ENDLESS


class AllocationState(StrEnum):
    """The state of an allocation. It only moves forward in this order."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"


class DesiredState(StrEnum):
    """The state of the allocation that the trial wants."""

    RUN = "run"
    PREEMPT = "preempt"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a gang."""

    state: AllocationState = AllocationState.PENDING
    """The state of the node's container."""
    has_ended: bool = field(default=False, metadata=keep_stored_name("gone"))
    """Whether the node has exited or was lost."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit that decides how a gang ends."""

    exit: AllocationExited
    """The exit of a node that so far weighs most (gang.py)."""
    desired_state: DesiredState = field(metadata=keep_stored_name("wish"))
    """The gang's desired state at the time of the exit."""


@dataclass(frozen=True)
class Hang:
    """A hang of a run: the processes live, but neither report nor print anything."""

    number: int
    """The number of the hang in the allocation, from 1."""
    since_ms: int
    """The time of the last output before the hang, in epoch ms."""
    silent_ms: int
    """The time in ms from the last output to the detection."""
    places: tuple[tuple[int, str], ...] = ()
    """The rank of each process that printed its stack, and the place of its main thread."""
    is_over: bool = False
    """Whether the run works again."""


@dataclass(frozen=True)
class Absence:
    """The nodes that a node of a gang has not met before the check of the machines."""

    node_rank: int
    """The rank of the waiting node."""
    missing: tuple[int, ...]
    """The ranks of the missing nodes."""
    has_met: bool = False
    """Whether the node has met any other node."""


@dataclass(frozen=True)
class LowUse:
    """The nodes of a run that use little of their slots."""

    nodes: tuple[int, ...]
    """The ranks of the nodes with low use."""
    percent: float
    """The mean use at the last report, in percent."""
    since_ms: int | None = None
    """The time since which the use of all nodes is low, in epoch ms. None: some nodes compute."""
    end_reason: str = ""
    """Why the run is ended for low use. "": the run continues."""


@dataclass(frozen=True)
class Allocation:
    """The requested or held slots of a trial's run. The last fields are set for gangs only."""

    ticket: str
    """The text by which the request sorts in the queue of `pool`."""
    state: AllocationState = AllocationState.PENDING
    """The state of the containers: for a gang, the state of the slowest node."""
    places: tuple[Place, ...] = ()
    """The held slots on each agent, in the order of ranks. Empty while the request is queued."""
    desired_state: DesiredState = field(default=DesiredState.RUN, metadata=keep_stored_name("wish"))
    """The desired state of the allocation."""
    desired_state_reason: str = field(default="", metadata=keep_stored_name("wish_reason"))
    """The reason for the desired state, for users."""
    from_steps: int = 0
    """The number of batches from which the run starts."""
    members: tuple[Member, ...] = ()
    """The nodes of a gang by rank, as far as they have reported."""
    verdict: Verdict | None = None
    """The exit that so far decides how the gang ends. None: no node has exited."""
    validated_steps: int = field(default=-1, metadata=keep_stored_name("validated"))
    """The batch of the latest validation of a gang that was counted, -1 before the first."""
    pool: str = ""
    """The name of the pool."""
    placed_ms: int = 0
    """The time at which the pool assigned the slots, in epoch ms."""
    rates: tuple[int, ...] = ()
    """The rate of each place, in micro-dollars per hour. Empty: not known, or no machine has a
    price.
    """
    spent_micros: int = 0
    """The cost of agents of this allocation that were lost, in micro-dollars (metering.py)."""
    notice_outcome: str = ""
    """The gang's reaction to an interruption notice, one of NOTICE_OUTCOMES, or ""."""
    has_come_to_limit: bool = False
    """Whether the run was killed at `max_duration`, or asked to stop at `max_trial_duration`."""
    hang: Hang | None = None
    """The latest hang of the run (hangs.py). None: the run has never hung."""
    has_hung: bool = False
    """Whether the run was killed because it hung."""
    check_text: str = ""
    """The result of the check of the machines (gang_checks.py), for users. "": no check."""
    absences: tuple[Absence, ...] = ()
    """The nodes of a gang that wait for other nodes, by rank (gang_checks.py)."""
    has_failed_check: bool = False
    """Whether the run was killed because the check of the machines failed."""
    uses: tuple[Use, ...] = ()
    """The measured use of each node by rank, as far as the nodes have reported (low_use.py)."""
    low_use: LowUse | None = None
    """The low use of nodes. None: no node has reported low use."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the ids of the agents, in the order of ranks.

        Empty until the pool has assigned slots.
        """
        return tuple(place.agent for place in self.places)

    @property
    def is_gang(self) -> bool:
        """Return whether the allocation has slots on several agents, or several nodes have
        reported.
        """
        return len(self.places) > 1 or len(self.members) > 1


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of an allocation, which is no failure of the trial."""

    at_ms: int
    """The time of the loss, in epoch ms."""
    agent: str
    """The id of the lost agent. "": unknown."""
    cause: str
    """The reason, for users."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of the checkpoint from which a run started."""

    at_ms: int
    """The time of the report, in epoch ms."""
    epoch: int
    """The epoch of the run."""
    uuid: str
    """The UUID of the checkpoint."""
    trial_id: int
    """The id of the checkpoint's trial. 0: another trial whose id is unknown."""
    steps: int
    """The number of batches in the checkpoint, 0 if unknown."""
    cause: str
    """The description of the damage, for users."""
    fallback_uuid: str = field(default="", metadata=keep_stored_name("instead"))
    """The UUID of the trial's checkpoint from which the next run starts. "": the trial has no
    other.
    """
    fallback_steps: int = field(default=0, metadata=keep_stored_name("instead_steps"))
    """The number of batches in that checkpoint."""


class Validation(NamedTuple):
    """A validation that still counts."""

    steps: int
    """The number of batches that the trial had trained."""
    metric: float
    """The searcher metric."""
    epoch: int
    """The epoch of the run."""


class RunStart(NamedTuple):
    """The start of a run. Reports of earlier runs about later batches no longer count."""

    epoch: int
    """The epoch of the run."""
    steps: int
    """The number of batches from which the run started, or BEGINNING or NOTHING_LOST of
    lost_work.py.
    """


@dataclass(frozen=True, slots=True)
class LogMatch:
    """A line of a run's log that matched a log policy."""

    at_ms: int
    """The time of the report, in epoch ms."""
    epoch: int
    """The epoch of the run."""
    name: str
    """The name of the policy. The pattern of a policy without a name."""
    line: str
    """The beginning of the line."""
    actions: tuple[str, ...] = ()
    """The actions of the policy, each of LOG_ACTIONS."""
    signal: str = ""
    """The text that the policy shows. "": no text."""
    agent: str = ""
    """The id of the agent on which the process ran. "": unknown."""
    rank: int = 0
    """The rank of the process. 0 if unknown."""


@dataclass(frozen=True)
class LoadFailure:
    """The failure of a run to load a checkpoint that the trial still keeps."""

    epoch: int
    """The epoch of the run."""
    uuid: str
    """The UUID of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the training code with a known place and error."""

    fingerprint: str
    """The digest of the place in the code and the error."""
    steps: int
    """The number of batches that the trial had trained."""
    checkpoint: str
    """The UUID of the trial's checkpoint at the failure. "": none."""
    agent: str
    """The agent on which the process failed."""


@dataclass(frozen=True, slots=True)
class ExpiredData:
    """The logs and metrics of the trial that have expired and were deleted.

    The marks are set before the deletion. Runs after the epoch of a mark still have the data.
    """

    logs_epoch: int = 0
    """The epoch of the last run whose log was deleted. 0: no log was deleted."""
    logs_ms: int = 0
    """The time of the deletion, in epoch ms."""
    metrics_epoch: int = 0
    """The epoch of the last run whose detailed metrics were deleted. 0: no metrics were deleted."""
    metrics_ms: int = 0
    """The time of the deletion, in epoch ms."""


@dataclass(frozen=True)
class TrialState:
    """The head of a trial.

    Lengths are in batches, except `length_units`. If the trial `counts_epochs`, then `length`,
    `reached` and `decided_length` are in epochs, as in directives and reports.
    """

    trial_id: int
    experiment_id: int
    number: int
    """The number of the trial within its experiment."""
    hparams: Mapping[str, object]
    """The hyperparameters by name. Empty after a deletion."""
    seed: int
    settings: TrialSettings
    """The settings that all trials of the experiment share, with the trial's present pool."""
    created_ms: int
    """The time of the creation, in epoch ms."""
    experiment_status: Status
    """The status of the experiment, as far as the trial knows."""
    status: Status = Status.ACTIVE
    length_units: int | None = None
    """The length to train to, in the configured unit. None: no length is assigned."""
    length: int | None = None
    """The length to train to. None: no length is assigned. ENDLESS: the training code decides."""
    closed: bool = False
    """Whether the search will assign no further length."""
    reached: int = 0
    """The latest length at which the trial validated."""
    decided_length: int = field(default=0, metadata=keep_stored_name("answered"))
    """The value of `reached` when the search last decided on the trial's work."""
    steps: int = 0
    """The number of batches that the trial has trained."""
    metric: float | None = None
    """The metric of the latest validation that counts, or None."""
    metric_steps: int | None = None
    """The number of batches at that validation."""
    best_metric: float | None = None
    """The best metric of all validations that count, or None."""
    restarts: int = 0
    """The number of failures of the training code since the trial was created or continued."""
    losses: int = 0
    """The number of lost allocations."""
    stalls: int = 0
    """The number of consecutive allocations that ended without a failure and without progress."""
    checkpoint: CheckpointRef | None = None
    """The checkpoint of the trial from which its next run starts, or None."""
    epoch: int = 0
    """The number of allocations so far. It is also the name of the present allocation."""
    revision: int = 1
    """A number that increases with every change of the directives. A new allocation begins
    with 1.
    """
    allocation: Allocation | None = None
    """The requested or held slots of the present run. None: the trial neither waits for slots nor
    runs.
    """
    early_exit: str = ""
    """The ExitReason that the training code announced, or ""."""
    ended_ms: int | None = None
    """The time of the end, in epoch ms. None: the trial has not ended."""
    message: str = ""
    """A text for users about the last failure or the end of the trial."""
    run_generation: int = field(default=0, metadata=keep_stored_name("life"))
    """The run generation of the experiment in which the trial was created or last continued."""
    killed: bool = False
    """Whether the allocation is to be stopped immediately, and the trial with it."""
    deleted: bool = False
    """Whether the trial was deleted. Only its head remains."""
    awaits_restart_delay: bool = field(default=False, metadata=keep_stored_name("held_back"))
    """Whether the trial waits for a delay before it requests slots again."""
    stopped: bool = False
    """Whether the search has stopped the trial."""
    awaits_checkpoint: bool = False
    """Whether the trial waits for the checkpoint of its parent trial."""
    inherited_checkpoint: CheckpointRef | None = field(
        default=None, metadata=keep_stored_name("inherited")
    )
    """The checkpoint of another trial from which this trial starts, or None."""
    recent_losses: tuple[Loss, ...] = ()
    """The latest losses, the oldest first."""
    cost_micros: int = 0
    """The cost of ended allocations, in micro-dollars."""
    share: float = 0.0
    """The reported share of the training that is done, from 0 to 1, if the code decides how long it
    trains. If the trial `counts_epochs`, the share of `length`.
    """
    recent_damages: tuple[Damage, ...] = ()
    """The latest damages of checkpoints from which runs started, the oldest first."""
    exit_code: int | None = None
    """The exit code of a program that runs once. None: it has not ended by itself."""
    awaits_good_exit: bool = False
    """Whether the latest run failed after it had reached the length (decision 0080)."""
    final_agent: str = field(default="", metadata=keep_stored_name("ran_on"))
    """The agent on which a program that runs once has ended. "": it has not ended."""
    validations: tuple[Validation, ...] = ()
    """The best and the latest validations that count (lost_work.py)."""
    run_starts: tuple[RunStart, ...] = ()
    """The starts of runs, as far as they still cut off reports of earlier runs (lost_work.py)."""
    discarded_from: int | None = None
    """The batch from which reports of earlier runs do not count. None: no work was lost before the
    present run.
    """
    lost_work: bool = False
    """Whether the last run ended otherwise than by giving up its slots."""
    load_failure: LoadFailure | None = None
    """The latest failure to load a checkpoint, or None."""
    replacement: Replacement | None = None
    """The replacement of a run that lost its slots, until the first step of a later run, or None
    (replacement_tracking.py).
    """
    snapshot: Snapshot | None = None
    """The newest snapshot of a notebook's or shell's folder, or None (snapshots.py)."""
    log_matches: tuple[LogMatch, ...] = ()
    """The latest lines that matched log policies, the oldest first (log_policies.py)."""
    signal: str = ""
    """The text of the latest log policy that matched and has a signal, or ""."""
    retries_canceled: str = ""
    """Why a failure ends the trial: the log policy and the line. "": failures are retried."""
    excluded_agents: tuple[str, ...] = ()
    """The ids of the agents on which no run starts, the oldest exclusion first."""
    recent_failures: tuple[Failure, ...] = ()
    """The failures since the last progress, the oldest first (repeated_failures.py)."""
    deletions: ExpiredData | None = None
    """The deletions of expired logs and metrics (expiry.py). None: nothing was deleted."""
    check_moves: int = 0
    """The number of consecutive runs that ended because the check of the machines failed."""
    used_ms: int = field(default=0, metadata=keep_stored_name("used"))
    """The time in ms that ended allocations have held slots since the trial was created or
    continued. Counted only with a limit (time_limit.py).
    """
    failure_times: tuple[int, ...] = field(default=(), metadata=keep_stored_name("failed"))
    """The times of the latest failures of the training code, in epoch ms. Stored only with a
    restart window (restart_window.py).
    """
    use: Use | None = None
    """The measured use of ended allocations. None: nothing was measured."""

    @property
    def expired_data(self) -> ExpiredData:
        """Return the deletions of expired logs and metrics, with epochs of 0 without a deletion."""
        return self.deletions or ExpiredData()

    @property
    def has_reached_length(self) -> bool:
        """Return whether the trial has reached the assigned length.

        Return False if no length is assigned.
        """
        return self.length is not None and self.reached >= self.length

    @property
    def starts_over(self) -> bool:
        """Return whether the trial has validated before, but has no checkpoint to continue from."""
        return self.checkpoint is None and (self.metric_steps or 0) > 0

    @property
    def repeats_all_training(self) -> bool:
        """Return whether the current run started from batch 0 although earlier runs had trained."""
        return self.starts_over or (self.checkpoint is None and self.discarded_from == 0)

    @property
    def must_end_again(self) -> bool:
        """Return whether all training is done, but the last process failed after that and must exit
        well.
        """
        return self.awaits_good_exit and self.closed and self.has_reached_length

    @property
    def is_open_ended(self) -> bool:
        """Return whether the code decides how long the trial trains, and no search has stopped the
        trial.
        """
        return self.length == ENDLESS and self.closed and not self.stopped

    @property
    def counts_epochs(self) -> bool:
        """Return whether lengths are epochs, and only the trial knows the number of batches of an
        epoch.
        """
        return self.settings.lengths.counts_epochs

    @property
    def target_steps(self) -> int | None:
        """Return the length to train to in batches.

        Return None if no length is assigned, if the training code decides the length, or if the
        trial `counts_epochs`.
        """
        return None if self.length == ENDLESS or self.counts_epochs else self.length

    @property
    def target_epochs(self) -> int | None:
        """Return the length to train to in epochs if the trial `counts_epochs`.

        Otherwise return None.
        """
        return self.length if self.counts_epochs else None

    @property
    def epochs_done(self) -> float:
        """Return the number of epochs done, which may be a fraction, for a trial that
        `counts_epochs`.

        It is the larger of the reached length and the reported share of the assigned length.
        """
        return max(float(self.reached), self.share * (self.length_units or 0))
