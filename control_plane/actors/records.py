"""Records shared by messages and states, and the status of experiments and trials."""

from dataclasses import dataclass
from enum import StrEnum
from sys import float_info

from control_plane.actors.lengths import Lengths


class JobKind(StrEnum):
    """The kind of an experiment for its users: a search, or one program that runs once."""

    EXPERIMENT = "experiment"
    COMMAND = "command"
    NOTEBOOK = "notebook"
    SHELL = "shell"


class Status(StrEnum):
    """The status of an experiment, and of a trial, which never has the last three."""

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
        """Whether the status is of something ended: only a command can still change it."""
        return self in _FINAL

    @property
    def is_stopping(self) -> bool:
        """Whether the status is on the way to a final one."""
        return self in _STOPPING

    @property
    def is_deleting(self) -> bool:
        """Whether checkpoints and records are being deleted, or may be gone already."""
        return self in _DELETING


_STOPPING = frozenset(status for status in Status if status.name.startswith("STOPPING"))
_DELETING = frozenset({Status.DELETING, Status.DELETE_FAILED, Status.DELETED})
_FINAL = frozenset({Status.COMPLETED, Status.CANCELED, Status.ERROR}) | _DELETING


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Settings of an experiment that all its trials share.

    `terminate_ms`: a trial that was told to stop and has saved its work is killed after this time,
    None: never. `preempt_ms`: a trial that was told to stop is killed after this time, whatever it
    has saved. The experiment has to be done by `deadline_ms`, an epoch time, and may cost at most
    `max_cost` dollars. `runs_once`: its code saves nothing, so that whatever ends its allocation
    ends the trial (trial/single_run.py).
    """

    pool: str
    slots: int
    max_restarts: int
    smaller_is_better: bool
    lengths: Lengths
    submitted_ms: int
    terminate_ms: int | None = None
    preempt_ms: int | None = None
    deadline_ms: int | None = None
    max_cost: float | None = None
    runs_once: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Slots of one agent, by their ids. The places of an allocation are in the order of its nodes'
    ranks.
    """

    agent: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Availability:
    """Which slots of an agent take new work, as users have set it.

    Not `enabled`: none of them. `draining`: what runs there may finish, else it is asked to leave.
    `disabled`: ids of slots that take no work whatever the agent does, and whose work has to leave.
    """

    enabled: bool = True
    draining: bool = False
    disabled: tuple[int, ...] = ()

    def is_slot_open(self, slot: int) -> bool:
        """Whether the slot may be given to an allocation."""
        return self.enabled and slot not in self.disabled


OPEN = Availability()


def worst_metric(smaller_is_better: bool) -> float:
    """The value that replaces a metric that is not finite."""
    return float_info.max if smaller_is_better else -float_info.max


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A complete checkpoint; `path` is relative to the store's root."""

    uuid: str
    trial_id: int
    steps_completed: int
    path: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class Retention:
    """How many checkpoints are kept: the best of the experiment, the best and the latest of each
    trial.
    """

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1
