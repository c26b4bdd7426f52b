"""The messages to a resource pool, and its settings."""

from dataclasses import dataclass, field

from control_plane.actors.records import OPEN, Availability
from control_plane.scheduling.model import (
    AUX_PER_AGENT_DEFAULT,
    PRIORITY_DEFAULT,
    SchedulerRules,
)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a pool: its part `settings`.

    `default_priority`: of jobs without one. `aux_per_agent`: allocations without slots that an
    agent takes. `provider` says where its machines come from, as JSON that only the provisioner
    reads. `draining`: nothing starts any more. `over_budget`: nothing starts, since the budget of
    `budget_micros` micro-dollars a month (UTC) is used up; None for any amount. `reserve_after_ms`:
    the wait after which slots are held for a job; None: they never are. `idle_apart`: jobs that
    neither request nor hold slots are kept apart from the others; releases after 0.1.0 set it.
    """

    scheduler: SchedulerRules = field(default_factory=SchedulerRules)
    default_priority: int = PRIORITY_DEFAULT
    aux_per_agent: int = AUX_PER_AGENT_DEFAULT
    provider: str = ""
    draining: bool = False
    over_budget: bool = False
    description: str = ""
    budget_micros: int | None = None
    reserve_after_ms: int | None = None
    idle_apart: bool = False


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """The pool was created, or its settings changed; None keeps them, or means the defaults."""

    name: str
    settings: PoolSettings | None = None


@dataclass(frozen=True, slots=True)
class PoolRemoved:
    """Command: remove the pool; refused while it has jobs or agents."""


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial requests `slots` slots for its allocation `epoch`; `ticket` orders the queue of its
    `group`, the id of its experiment.
    """

    trial_id: int
    epoch: int
    slots: int
    ticket: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class JobChanged:
    """A job's row was written or removed (job_row.py)."""

    group: int


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """A trial releases the slots of its allocation, or its place in the queue. `agents`: those of
    its slots as far as the sender knows, none while queued; `group` as in the request.
    """

    trial_id: int
    epoch: int
    ticket: str
    agents: tuple[str, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent enrolled, with the ids of its slots. Only jobs of its `label` run there."""

    agent: str
    epoch: int
    slots: tuple[int, ...]
    availability: Availability = OPEN
    label: str = ""


@dataclass(frozen=True, slots=True)
class AgentAvailabilityChanged:
    """A user changed which slots of the agent take work."""

    agent: str
    epoch: int
    availability: Availability


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's lease, last renewed at `heard_ms`, has lapsed: all that ran there is lost."""

    agent: str
    epoch: int
    reason: str
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StaleAllocationsFound:
    """The audit found allocations that the pool still holds though their trials released them."""

    stale: tuple[SlotsReleased, ...]


@dataclass(frozen=True, slots=True)
class BudgetChecked:
    """The budget was checked; `over_budget`: it is used up."""

    over_budget: bool


@dataclass(frozen=True, slots=True)
class SupplyChecked:
    """The provisioner found that no offering of the pool may be launched before `until_ms`, for a
    lack of capacity or quota, and that no instance is on its way: `closed` says why. "": it is not
    so.
    """

    closed: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class PatienceEnded:
    """Timer: the job of this group may have waited for long enough since `since_ms`."""

    group: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class SchedulingContinued:
    """The pool's message to itself: more could start than one commit holds, or what started on held
    slots may be preempted from now on.
    """


PoolMessage = (
    PoolConfigured
    | PoolRemoved
    | SlotsRequested
    | JobChanged
    | SlotsReleased
    | AgentJoined
    | AgentAvailabilityChanged
    | AgentLost
    | StaleAllocationsFound
    | BudgetChecked
    | SupplyChecked
    | PatienceEnded
    | SchedulingContinued
)
