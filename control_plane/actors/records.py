"""What messages and states share: the status of experiments and trials, and small records."""

from dataclasses import dataclass
from enum import StrEnum
from sys import float_info

from control_plane.actors.lengths import Lengths


class Status(StrEnum):
    """Of an experiment and, mirrored but for the last three, of its trials."""

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
    def final(self) -> bool:
        """It has ended: nothing runs, and nothing but a command changes it."""
        return self in _FINAL

    @property
    def stopping(self) -> bool:
        """On the way to a final status."""
        return self in _STOPPING

    @property
    def deleting(self) -> bool:
        """Its checkpoints and records go or may be gone already."""
        return self in _DELETING


_STOPPING = frozenset(status for status in Status if status.name.startswith("STOPPING"))
_DELETING = frozenset({Status.DELETING, Status.DELETE_FAILED, Status.DELETED})
_FINAL = frozenset({Status.COMPLETED, Status.CANCELED, Status.ERROR}) | _DELETING


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What a trial needs of its experiment, the same for all its trials.

    `terminate_ms`: a trial that was told to stop and has saved its work is killed after this long,
    None: never; `preempt_ms`: so is one that was told to stop, whatever it has saved. The
    experiment has to be done by `deadline_ms`, a moment, and may cost `max_cost` at most.
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


@dataclass(frozen=True, slots=True)
class Place:
    """Slots of one agent, by their ids. The places of an allocation are in the order of its nodes'
    ranks.
    """

    agent: str
    slots: tuple[int, ...]


def worst_metric(smaller_is_better: bool) -> float:
    """What a metric counts as that is no finite number."""
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
