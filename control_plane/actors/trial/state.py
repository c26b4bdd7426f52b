"""The state of a trial: its head and its one allocation."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.records import CheckpointRef, Place, Status, TrialSettings
from control_plane.searchers.method import ENDLESS


class AllocationState(StrEnum):
    """The state of an allocation, which never goes back."""

    PENDING = "PENDING"
    ASSIGNED = "ASSIGNED"
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"


class DesiredState(StrEnum):
    """The state that the trial wants its running allocation to be in."""

    RUN = "run"
    PREEMPT = "preempt"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a gang: the state of its container, and whether it is gone."""

    state: AllocationState = AllocationState.PENDING
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit that decides how a gang ends, and the gang's desired state when it exited."""

    exit: AllocationExited
    wish: DesiredState


@dataclass(frozen=True)
class Allocation:
    """Slots requested or held, for training from batch `from_steps` on. `ticket` is its place in
    the queue of `pool`. It has no `places` while queued, and got them at `placed_ms`; they cost
    `rates`, and lost ones cost `spent_micros` in all (metering.py). `wish`: its desired state.

    Fields of gangs alone: `members` by rank, the `verdict` on them so far, the steps of the latest
    validation that counted, `validated`, and how a notice went, `notice_outcome`.
    """

    ticket: str
    state: AllocationState = AllocationState.PENDING
    places: tuple[Place, ...] = ()
    wish: DesiredState = DesiredState.RUN
    wish_reason: str = ""
    from_steps: int = 0
    members: tuple[Member, ...] = ()
    verdict: Verdict | None = None
    validated: int = -1
    pool: str = ""
    placed_ms: int = 0
    rates: tuple[int, ...] = ()
    spent_micros: int = 0
    notice_outcome: str = ""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents of its slots; none until the pool has assigned slots."""
        return tuple(place.agent for place in self.places)

    @property
    def is_gang(self) -> bool:
        """Whether the pool has assigned slots on several agents."""
        return len(self.places) > 1 or len(self.members) > 1


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of an allocation, which is no failure of the trial: when, on which agent ("":
    unknown), and why.
    """

    at_ms: int
    agent: str
    cause: str


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage of the checkpoint that the run of `epoch` began from, of trial `trial_id` (0: of
    another trial, nobody knows which), and its cause. The trial goes on from checkpoint `instead`
    of its own, "" where it has no other, at batch `instead_steps`.
    """

    at_ms: int
    epoch: int
    uuid: str
    trial_id: int
    steps: int
    cause: str
    instead: str = ""
    instead_steps: int = 0


@dataclass(frozen=True)
class TrialState:
    """The head of a trial. Lengths are in batches except `length_units`; where it `counts_epochs`,
    `length`, `reached` and `answered` are epochs too, as in its directives and its reports.

    `revision` counts changes of directives. `metric` is that of the last validation, at
    `metric_steps`. `reached`: the latest length that it validated at; `answered`: the latest one
    that the search has decided on. `closed`: the search will ask for no further length; `stopped`:
    it wants the trial to end. `life`: the run generation of the experiment in which the trial last
    began or was continued. `killed`: the allocation is to be stopped at once and for good.
    `deleted`: nothing is left of the trial but this. `held_back`: it waits before it requests slots
    again. `stalls`: ends of allocations in a row that are no failures and made no progress.
    `inherited`: the checkpoint of another trial to start from; it has not come while
    `awaits_checkpoint`. `losses` counts lost allocations, `recent_losses` has the last few.
    `recent_damages` has the last few checkpoints that runs began from and found damaged.
    `awaits_good_exit`: its latest run failed after it had reached the length (decision 0080).
    `cost_micros`: the cost of ended allocations. `share`: how much of its training the code says is
    done, where no length does; how much of `length`, where it `counts_epochs`. `exit_code`: of the
    program of one that runs once, None unless it ended by itself; `ran_on`: the agent of that run,
    "" before its end.
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
    share: float = 0.0
    recent_damages: tuple[Damage, ...] = ()
    exit_code: int | None = None
    awaits_good_exit: bool = False
    ran_on: str = ""

    @property
    def has_reached_length(self) -> bool:
        """Whether all is trained that the trial was asked for so far."""
        return self.length is not None and self.reached >= self.length

    @property
    def must_end_again(self) -> bool:
        """Whether everything is trained, and the trial runs again since its process failed then."""
        return self.awaits_good_exit and self.closed and self.has_reached_length

    @property
    def is_open_ended(self) -> bool:
        """Whether its code decides how long it trains, and no search stops it."""
        return self.length == ENDLESS and self.closed and not self.stopped

    @property
    def counts_epochs(self) -> bool:
        """Whether its lengths are epochs whose number of batches only the trial knows."""
        return self.settings.lengths.counts_epochs

    @property
    def target_steps(self) -> int | None:
        """The length in batches; None without one, and where nobody here knows it."""
        return None if self.length == ENDLESS or self.counts_epochs else self.length

    @property
    def target_epochs(self) -> int | None:
        """The length in epochs, where it alone knows how many batches they have; else None."""
        return self.length if self.counts_epochs else None

    @property
    def epochs_done(self) -> float:
        """The epochs that it has reported to be done, of those it was told to train, where it
        `counts_epochs`.
        """
        return max(float(self.reached), self.share * (self.length_units or 0))
