"""Every message to a resource pool, in the past tense."""

from dataclasses import dataclass, field

from control_plane.actors.slots import OPEN, Availability
from control_plane.scheduling.model import (
    AUX_PER_AGENT_DEFAULT,
    PRIORITY_DEFAULT,
    SchedulerRules,
)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Part `settings` of a pool.

    `default_priority`: of jobs without one. `aux_per_agent`: allocations without slots that an
    agent takes. `provider` says where its machines come from, as JSON that only the provisioner
    reads. `draining`: nothing starts any more; `over_budget`: nor while its budget
    is used up, which is `budget_micros` micro-dollars a month (UTC), None for any amount.
    """

    scheduler: SchedulerRules = field(default_factory=SchedulerRules)
    default_priority: int = PRIORITY_DEFAULT
    aux_per_agent: int = AUX_PER_AGENT_DEFAULT
    provider: str = ""
    draining: bool = False
    over_budget: bool = False
    description: str = ""
    budget_micros: int | None = None


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """Constructor and change of settings; None keeps them, and begins with the defaults."""

    name: str
    settings: PoolSettings | None = None


@dataclass(frozen=True, slots=True)
class PoolRemoved:
    """Command: the pool is to go; refused while it has jobs or agents."""


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial wants `slots` slots for its allocation `epoch`; `ticket` orders the queue of its
    `group`, which is its experiment's id.
    """

    trial_id: int
    epoch: int
    slots: int
    ticket: str
    group: int = 0


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The row of a job was written anew or removed: see jobs.py."""

    group: int


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """The allocation needs its slots or its place in the queue no more. `agents`: those that have
    it as far as the sender knows, none while queued; `group` as in the request.
    """

    trial_id: int
    epoch: int
    ticket: str
    agents: tuple[str, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent enrolled; `slots` are the ids of its slots. Only jobs of its label run there."""

    agent: str
    epoch: int
    slots: tuple[int, ...]
    availability: Availability = OPEN
    label: str = ""


@dataclass(frozen=True, slots=True)
class AgentAvailabilityChanged:
    """Other slots of the agent take work than before."""

    agent: str
    epoch: int
    availability: Availability


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's lease lapsed, last renewed at `heard_ms`: whatever ran there is lost."""

    agent: str
    epoch: int
    reason: str
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AuditFound:
    """Allocations the pool still holds though their trials have let go of them."""

    stale: tuple[SlotsReleased, ...]


@dataclass(frozen=True, slots=True)
class BudgetChecked:
    """Whether the pool has used its budget up."""

    over_budget: bool


@dataclass(frozen=True, slots=True)
class SchedulingContinued:
    """More could start than one commit holds."""


PoolMessage = (
    PoolConfigured
    | PoolRemoved
    | SlotsRequested
    | JobChanged
    | SlotsReleased
    | AgentJoined
    | AgentAvailabilityChanged
    | AgentLost
    | AuditFound
    | BudgetChecked
    | SchedulingContinued
)
