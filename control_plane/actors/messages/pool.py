"""The messages to a resource pool, and the pool's settings."""

from dataclasses import dataclass, field

from control_plane.actors.records import OPEN, Availability
from control_plane.rows.stored_fields import keep_stored_name
from control_plane.scheduling.agent_needs import AgentKind
from control_plane.scheduling.model import (
    AUX_PER_AGENT_DEFAULT,
    PRIORITY_DEFAULT,
    SchedulerRules,
)
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod


@dataclass(frozen=True, slots=True)
class LogExclusionRules:
    """The exclusion of machines from the pool by log policies with `exclude_node`."""

    duration_ms: int
    """The length of an exclusion, in ms."""
    policies: tuple[str, ...] = ()
    """The names of the policies that exclude from the pool. Empty: all policies."""


@dataclass(frozen=True, slots=True)
class GangCheckRules:
    """The check of a gang's machines before the trial starts."""

    enabled: bool = True
    """Whether gangs are checked."""
    min_bandwidth: float | None = None
    """The smallest bandwidth of a good check, in MB/s. None: a share of the usual bandwidth."""
    timeout_ms: int = 60_000
    """The longest duration of an all-reduce, in ms."""
    exclusion_ms: int = 3_600_000
    """The length of an exclusion of a bad machine, in ms."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a pool, stored in the part `settings` of the pool."""

    scheduler: SchedulerRules = field(default_factory=SchedulerRules)
    """The kind of scheduler and its options."""
    default_priority: int = PRIORITY_DEFAULT
    """The priority of jobs whose own priority is not set."""
    aux_per_agent: int = AUX_PER_AGENT_DEFAULT
    """The most allocations without slots on an agent."""
    provider: str = ""
    """The source of the pool's machines, as JSON that only the provisioner reads."""
    draining: bool = False
    """Whether the pool starts no more allocations."""
    over_budget: bool = False
    """Whether the budget of the month is used up, so that the pool starts no more allocations."""
    description: str = ""
    budget_micros: int | None = None
    """The budget of a calendar month (UTC), in micro-dollars. None: no limit."""
    reserve_after_ms: int | None = None
    """How long a job waits before the pool reserves slots for it, in ms. None: the pool reserves
    none.
    """
    stores_idle_jobs_apart: bool = field(default=False, metadata=keep_stored_name("idle_apart"))
    """Whether jobs that neither request nor hold slots are stored apart from the others. Set by
    releases after 0.1.0.
    """
    log_exclusion: LogExclusionRules | None = None
    """The exclusion of machines by log policies. None: log policies exclude no machine from the
    pool.
    """
    gang_check: GangCheckRules = field(default_factory=GangCheckRules)
    """The check of gangs."""
    quiet_hours: tuple[QuietHours, ...] = ()
    """The rules of the pool's quiet hours."""
    quiet_periods: tuple[QuietPeriod, ...] = ()
    """The present and the next periods of the rules, in order. They may have ended."""
    is_quiet: bool = False
    """Whether the last check of the quiet hours was within a period."""
    quiet_ended_ms: int = 0
    """The end of the last quiet hours, in epoch ms. 0: none have ended."""


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """The pool was created, or the settings of the pool were changed."""

    name: str
    settings: PoolSettings | None = None
    """The new settings. None: keep the present settings, or create the pool with the defaults."""


@dataclass(frozen=True, slots=True)
class PoolRemoved:
    """Command: remove the pool. Refused while the pool has jobs or agents."""


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial requested slots for an allocation."""

    trial_id: int
    epoch: int
    """The epoch of the allocation."""
    slots: int
    """The number of slots."""
    ticket: str
    """A text by which the requests of a job sort in the queue."""
    group: int = 0
    """The id of the experiment, which is the job's number."""
    excluded_agents: tuple[str, ...] = ()
    """The ids of the agents that must not run the allocation."""


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The row of a job was written or removed (job_row.py)."""

    group: int
    """The id of the experiment."""


@dataclass(frozen=True, slots=True)
class SlotsReleased:
    """A trial released the slots of an allocation, or withdrew a request from the queue."""

    trial_id: int
    epoch: int
    """The epoch of the allocation."""
    ticket: str
    """The ticket of the request."""
    agents: tuple[str, ...]
    """The agents of the released slots, as far as the sender knows. Empty for a queued request."""
    group: int = 0
    """The group of the request."""


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """An agent enrolled."""

    agent: str
    epoch: int
    """The number of the agent's session."""
    slots: tuple[int, ...]
    """The ids of the agent's slots."""
    availability: Availability = OPEN
    """The slots that accept work, as users have set."""
    label: str = ""
    """The agent's label. Only jobs with this label run on the agent."""
    kind: AgentKind | None = None
    """The agent's devices and user. None: an older agent, or a session of an older release."""


@dataclass(frozen=True, slots=True)
class AgentAvailabilityChanged:
    """A user changed which slots of the agent accept work."""

    agent: str
    epoch: int
    """The number of the agent's session."""
    availability: Availability
    """The new availability of the agent and its slots."""


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's lease has lapsed, so all allocations on the agent are lost."""

    agent: str
    epoch: int
    """The number of the agent's session."""
    reason: str
    """The reason of the loss, for users."""
    last_contact_ms: int | None = field(default=None, metadata=keep_stored_name("heard_ms"))
    """The time of the lease's last renewal, in epoch ms. None: unknown."""


@dataclass(frozen=True, slots=True)
class StaleAllocationsFound:
    """The audit found allocations in the pool that the trials have released."""

    stale: tuple[SlotsReleased, ...]
    """The releases that the pool is to repeat."""


@dataclass(frozen=True, slots=True)
class BudgetChecked:
    """The maintenance checked the pool's budget."""

    over_budget: bool
    """Whether the budget is used up."""
    raises_events: bool = False
    """Whether webhooks announce the change. False in messages of older releases."""


@dataclass(frozen=True, slots=True)
class QuietHoursChecked:
    """The maintenance checked the pool's quiet hours: some have begun, ended or are now known."""

    rules: tuple[QuietHours, ...]
    """The rules of the check. The pool ignores a check of other rules than its own."""
    periods: tuple[QuietPeriod, ...]
    """The present and the next periods, in order."""


@dataclass(frozen=True, slots=True)
class SupplyChecked:
    """The provisioner checked whether instances can be launched for the pool."""

    no_supply_reason: str = field(metadata=keep_stored_name("closed"))
    """Why no offering can be launched, for want of capacity or quota, while no instance is
    starting. "": the provisioner can launch instances.
    """
    until_ms: int
    """The time until which `no_supply_reason` is true, in epoch ms."""


@dataclass(frozen=True, slots=True)
class ExclusionRequested:
    """A trial has the evidence for a bad machine. The pool's settings decide about an exclusion."""

    agent: str
    """The id of the machine's agent."""
    reason: str
    """The evidence, for users."""
    policy: str = ""
    """The name of the log policy that matched. "": the policy has no name, or a check failed."""
    by_check: bool = False
    """Whether a check of a gang found the machine."""


@dataclass(frozen=True, slots=True)
class GangChecked:
    """The machines of a gang have passed the check."""

    agents: tuple[str, ...]
    """The ids of the agents."""
    device: str
    """The kind of devices that were compared, for example `cpu`."""
    bandwidth: float
    """The bandwidth of the all-reduce, in MB/s."""


@dataclass(frozen=True, slots=True)
class PatienceEnded:
    """Timer: the job may have waited long enough to leave this pool."""

    group: int
    """The id of the experiment."""
    since_ms: int
    """The start of the wait, in epoch ms."""


@dataclass(frozen=True, slots=True)
class SchedulingContinued:
    """The pool's own message: run the scheduler again.

    The last commit could not contain all starts, or a protection from preemption has ended.
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
    | QuietHoursChecked
    | SupplyChecked
    | PatienceEnded
    | SchedulingContinued
    | ExclusionRequested
    | GangChecked
)
