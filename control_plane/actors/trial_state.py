"""What a trial is made of: its head and its one allocation."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings
from control_plane.actors.trial_messages import AllocationExited


class AllocationState(StrEnum):
    """How far an allocation has come; it never goes back."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"


class Wish(StrEnum):
    """What the trial wants of its running allocation."""

    RUN = "run"
    PREEMPT = "preempt"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a gang: how far its container has come, and whether it is gone."""

    state: AllocationState = AllocationState.PENDING
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit that decides how a gang ends, and what was wanted of the gang when it came."""

    exit: AllocationExited
    wish: Wish


@dataclass(frozen=True)
class Allocation:
    """Slots asked for or held, for training from batch `from_steps` on. `ticket` is its place in
    the queue of `pool`; it has no `places` while queued, and got them at `placed_ms`.
    They cost `rates`, and `spent_micros` was spent on those that were lost: see cost.py.

    The rest is of gangs alone: their `members` by rank, the `verdict` on them so far, and the steps
    of the latest validation that counted.
    """

    ticket: str
    state: AllocationState = AllocationState.PENDING
    places: tuple[Place, ...] = ()
    wish: Wish = Wish.RUN
    wish_reason: str = ""
    from_steps: int = 0
    members: tuple[Member, ...] = ()
    verdict: Verdict | None = None
    validated: int = -1
    pool: str = ""
    placed_ms: int = 0
    rates: tuple[int, ...] = ()
    spent_micros: int = 0

    @property
    def agents(self) -> tuple[str, ...]:
        """Those that it has slots of, as far as the trial knows."""
        return tuple(place.agent for place in self.places)

    @property
    def is_gang(self) -> bool:
        """Whether it has several nodes, as far as the trial knows."""
        return len(self.places) > 1 or len(self.members) > 1


@dataclass(frozen=True, slots=True)
class Loss:
    """An allocation that ended by no failure of the trial: when, on which agent ("": unknown), and
    why.
    """

    at_ms: int
    agent: str
    cause: str


@dataclass(frozen=True)
class TrialState:
    """The head. Lengths are in batches except `length_units`; `revision` counts changes of
    directives; `metric` is of the last validation, at `metric_steps`. `life` is that of the
    experiment in which it last began; `killed`: what runs is to be stopped at once and for good;
    `deleted`: nothing is left of the trial but this. `held_back`: it waits a while before it asks
    for slots again. `stalls`: ends in a row that are no failures and brought it no further.
    `stopped`: the search wants no more of it. `inherited`: the checkpoint of another trial that it
    starts from, which is still to come while it `awaits_checkpoint`. `losses` counts allocations
    that were lost, of which `recent_losses` are the last few. `cost_micros`: of allocations
    that have ended.
    """

    trial_id: int
    experiment_id: int
    number: int
    hparams: Mapping[str, object]
    seed: int
    settings: TrialSettings
    created_ms: int
    experiment_status: Status
    status: Status = Status.ACTIVE
    length_units: int | None = None
    length: int | None = None
    closed: bool = False
    reached: int = 0
    answered: int = 0
    steps: int = 0
    metric: float | None = None
    metric_steps: int | None = None
    best_metric: float | None = None
    restarts: int = 0
    losses: int = 0
    stalls: int = 0
    checkpoint: CheckpointRef | None = None
    epoch: int = 0
    revision: int = 1
    allocation: Allocation | None = None
    early_exit: str = ""
    ended_ms: int | None = None
    message: str = ""
    life: int = 0
    killed: bool = False
    deleted: bool = False
    held_back: bool = False
    stopped: bool = False
    awaits_checkpoint: bool = False
    inherited: CheckpointRef | None = None
    recent_losses: tuple[Loss, ...] = ()
    cost_micros: int = 0
