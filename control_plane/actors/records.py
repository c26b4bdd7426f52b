"""Records that messages and states share, and the statuses of experiments and trials."""

from dataclasses import dataclass, field
from enum import StrEnum
from sys import float_info

from control_plane.actors.lengths import Lengths
from control_plane.rows.stored_fields import keep_stored_name


class JobKind(StrEnum):
    """The kind of an experiment for users: a search, or a program that runs once."""

    EXPERIMENT = "experiment"
    COMMAND = "command"
    NOTEBOOK = "notebook"
    SHELL = "shell"


class Status(StrEnum):
    """The status of an experiment or a trial. Trials never have the last three."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETE_FAILED = "DELETE_FAILED"
    DELETED = "DELETED"

    @property
    def is_final(self) -> bool:
        """Return whether the experiment or trial has ended.

        Only a user's command can change a final status.
        """
        return self in _FINAL

    @property
    def is_stopping(self) -> bool:
        """Return whether the experiment is ending: when all trials have ended, the status becomes
        final.
        """
        return self in _STOPPING

    @property
    def is_deleting(self) -> bool:
        """Return whether the experiment is being deleted, was deleted, or failed to be deleted.

        Its checkpoints and records may be gone.
        """
        return self in _DELETING


_STOPPING = frozenset(status for status in Status if status.name.startswith("STOPPING"))
_DELETING = frozenset({Status.DELETING, Status.DELETE_FAILED, Status.DELETED})
_FINAL = frozenset({Status.COMPLETED, Status.CANCELED, Status.ERROR}) | _DELETING


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How the files of a notebook's or shell's folder are kept."""

    kind: JobKind
    """The kind of job, for the command that starts a run with the files."""
    period_ms: int
    """The time between snapshots while files change."""
    bytes_max: int
    """The largest size of all files."""
    is_restored: bool = False
    """Whether the run starts with the files of another run."""


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The trace of an experiment's submission."""

    traceparent: str
    """The trace context of the submission, in the form of W3C Trace Context."""
    exports_spans: bool = False
    """Whether the cluster exports spans of the trials' runs."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The settings of an experiment that all trials share."""

    pool: str
    """The name of the resource pool."""
    slots: int
    """The number of slots of each trial."""
    max_restarts: int
    """The number of failures after which the trial may start again."""
    smaller_is_better: bool
    """Whether a smaller searcher metric is better."""
    lengths: Lengths
    """The unit of the trials' lengths."""
    submitted_ms: int
    """The time of the experiment's submission, in epoch ms."""
    terminate_ms: int | None = None
    """The time in ms until the kill of a trial that was asked to stop and has saved its work. None:
    no limit.
    """
    preempt_ms: int | None = None
    """The time in ms until the kill of a trial that was asked to stop, whether or not it has saved
    its work. None: no limit.
    """
    deadline_ms: int | None = None
    """The time by which the experiment is to have ended, in epoch ms. None: no deadline."""
    max_cost: float | None = None
    """The most that the experiment may cost, in dollars. None: no limit."""
    runs_once: bool = False
    """Whether the trial's code saves no checkpoints, so that every end of the trial's allocation
    ends the trial (trial/single_run.py).
    """
    discards_lost_metrics: bool = False
    """Whether metrics of runs whose work was lost are discarded (trial/lost_work.py). False for
    experiments of older releases.
    """
    max_duration_ms: int | None = None
    """The time in ms after which the run of a command, notebook or shell ends, from the assignment
    of slots. None: no limit.
    """
    idle_timeout_ms: int | None = None
    """The time in ms after which the agent ends an idle run. The trial of an experiment is then
    canceled. None: no limit, and always for notebooks.
    """
    experiment_duration_ms: int | None = None
    """The time in ms after which the experiment is canceled, from the first assignment of slots to
    any trial. None: no limit.
    """
    snapshots: SnapshotSettings | None = None
    """How the files of a notebook's or shell's folder are kept. None: they are lost with the run.
    """
    trace: TraceSettings | None = None
    """The trace that the runs continue. None: the submission had no trace context."""
    restarts_hangs: bool = False
    """Whether a hanging run is ended and started again (trial/hangs.py)."""
    # Short stored names save write units: each head of a trial contains the settings.
    trial_duration_ms: int | None = field(default=None, metadata=keep_stored_name("time_ms"))
    """The time in ms that a trial of an experiment may hold slots, over all runs
    (trial/time_limit.py). None: no limit.
    """
    restart_window_ms: int | None = field(default=None, metadata=keep_stored_name("window_ms"))
    """The time in ms for which a failure counts against `max_restarts` (trial/restart_window.py).
    None: failures count for ever.
    """
    low_use: str = ""
    """The action after low use of the slots: `notify`, `end` or `ignore` (trial/low_use.py). "": an
    experiment of an older release, whose usage rows lack the number of slots.
    """
    slot_sharers: int = field(default=1, metadata=keep_stored_name("sharers"))
    """The most trials of the experiment that share a slot. 1: each trial has its own slots."""


@dataclass(frozen=True, slots=True)
class Place:
    """The slots of an allocation on an agent. Places are listed in the order of node ranks."""

    agent: str
    """The id of the agent."""
    slots: tuple[int, ...]
    """The ids of the slots."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Which slots of an agent accept new work, by users' settings, faults, exclusions, and the use
    of the machine by people.
    """

    enabled: bool = True
    """Whether the agent accepts new work. If False, none of its slots do."""
    draining: bool = False
    """Whether allocations on a disabled agent may finish. If False, they are asked to stop."""
    disabled: tuple[int, ...] = ()
    """Ids of the slots that accept no work, even if the agent is enabled. Their allocations are
    asked to stop.
    """
    reopens: bool = False
    """Whether the disabled agent is enabled again without a user's command: at the end of a fault
    of the machine, of an exclusion, or of the use by people.
    """
    checkpoints: bool = False
    """Whether trials on the draining agent are asked to save a checkpoint and leave."""

    @property
    def is_closed_by_user(self) -> bool:
        """Return whether the agent accepts no new work until a user's command enables the agent.

        The provisioner's drains count as users' commands.
        """
        return not self.enabled and not self.reopens

    def is_slot_open(self, slot: int) -> bool:
        """Return whether the slot with this id accepts a new allocation. The id is not checked."""
        return self.enabled and slot not in self.disabled


OPEN = Availability()
"""The availability of an agent that no user has restricted."""


def worst_metric(smaller_is_better: bool) -> float:
    """Return the finite float that replaces a missing metric, or a metric that is not finite.

    No finite metric is worse.
    """
    return float_info.max if smaller_is_better else -float_info.max


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint and the place of the files."""

    uuid: str
    trial_id: int
    """The id of the trial that wrote the checkpoint, or for which a user uploaded it."""
    steps_completed: int
    """The number of batches that the trial had trained."""
    path: str
    """The path of the checkpoint's folder, relative to the root of the checkpoint store."""
    manifest_sha256: str
    """The SHA-256 digest of the manifest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The newest snapshot of a notebook's or shell's folder: a checkpoint of the trial."""

    checkpoint: CheckpointRef
    """The checkpoint. `steps_completed` is the number of the snapshot."""
    size_bytes: int
    """The size of the checkpoint's files."""
    saved_ms: int
    """The time at which the snapshot was recorded, in epoch ms."""
    is_deleted: bool = False
    """Whether a user has deleted the snapshot, and no newer snapshot was saved."""


RETENTION_DAYS_MAX = 32_767
"""The most days for which logs and metrics are kept, as in Determined."""


@dataclass(frozen=True, slots=True)
class DataRetention:
    """The days from the end of an experiment for which logs and detailed metrics are kept.

    -1: as long as the experiment. None: not set, which means the same.
    """

    log_days: int | None = None
    """The days for which logs are kept."""
    metrics_days: int | None = None
    """The days for which detailed metrics are kept."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The numbers of checkpoints that the collector keeps."""

    save_experiment_best: int = 0
    """The number of best checkpoints of the whole experiment."""
    save_trial_best: int = 1
    """The number of best checkpoints of each trial."""
    save_trial_latest: int = 1
    """The number of latest checkpoints of each trial."""
