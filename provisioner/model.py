"""Inputs and results of the scale decider: settings, demand, observed instances, and the plan.

Times are epoch milliseconds and durations milliseconds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from control_plane.fleet.records import ErrorKind, FleetRow, InstanceRow, Market, Offering
from control_plane.scheduling.agent_needs import NO_NEEDS, AgentNeeds
from control_plane.scheduling.reservations import OverdueSize

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProvisionerSettings:
    """A pool's provider settings: the number of instances and the offerings."""

    kind: str
    """The provider's type, such as `aws`."""
    min_instances: int = 0
    """The number of instances that the pool keeps without pending work."""
    max_instances: int = 5
    """The maximum of instances that start, run or drain without an interruption notice."""
    idle_ms_max: int = 20 * MINUTE_MS
    """The time without work after which an instance is drained."""
    starting_ms_max: int = 20 * MINUTE_MS
    """The time that an instance's agent has to enrol after the launch."""
    launch_error_limit: int = 10
    """The number of launch errors after which an offering is given up; 0 disables this.

    Capacity, quota and throttling errors do not count. A given-up offering is tried with a single
    instance, once an hour at most.
    """
    offerings: tuple[Offering, ...] = ()
    """The offerings in order of preference; if empty, the cloud's own list is used.

    Spot offerings precede on-demand offerings, whatever the order.
    """
    on_demand_fallback: bool = True
    """Whether on-demand offerings are used while no spot offering is available."""
    on_demand_base: float = 0.0
    """The share of instances, 0 to 1, that is always bought on demand."""
    section: str = "{}"
    """The settings that only this provider has, as JSON."""

    @property
    def location(self) -> str:
        """Return `KIND:PROJECT:REGION`, the scope in which an instance id is unique.

        Project and region are the pool's own settings: a value that only the deployment sets, or
        that is missing, appears as `None`. An example is `aws:None:us-east-1`.
        """
        fields = json.loads(self.section)
        names = (self.kind, fields.get("project"), fields.get("region"))
        return ":".join(map(str, names))

    @property
    def terminations_max(self) -> int:
        """Return how many drains and terminations may start at once, and again in each minute.

        The number is a quarter of `max_instances`, rounded up, and at least 5.
        """
        return max(5, ceil(self.max_instances / 4))


@dataclass(frozen=True, slots=True)
class DeadlineProgress:
    """The progress of a job that has a deadline."""

    submitted_ms: int
    deadline_ms: int
    """The time by which the job is to end."""
    worked_ms: int = 0
    """The time for which the job has had machines."""
    progress: float | None = None
    """The completed share of the job's work, 0 to 1; None if unknown."""


@dataclass(frozen=True, slots=True)
class JobDemand:
    """The pending requests of a job."""

    pending_slots: Mapping[int, int]
    """The number of pending requests by their size in slots."""
    remaining_slots: int | None = None
    """The number of slots that the job may still get, or None without a limit."""
    single_agent: bool = False
    """Whether each request must fit on a single agent."""
    deadline_progress: DeadlineProgress | None = None
    """The job's progress; None if the job has no deadline."""
    market: Market | None = None
    """The market on which the job's instances must be bought; None allows both markets."""
    excluded_agents: tuple[str, ...] = ()
    """The ids of the agents that must not run these requests, sorted."""
    needs: AgentNeeds = NO_NEEDS
    """The job's needs of an agent."""
    unfit_agents: frozenset[str] = frozenset()
    """The ids of the connected agents that do not meet the needs."""
    refused_types: frozenset[str] = frozenset()
    """The instance types that do not meet the needs (fit_types.py)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The pending work of a pool."""

    jobs: tuple[JobDemand, ...] = ()
    zero_slot_requests: int = 0
    """The number of pending requests without slots."""
    aux_per_agent: int = 100
    """The number of zero-slot requests that one instance takes."""
    hold_reason: str = ""
    """The reason why pending work gets no instances, for users; "" if it may get some."""
    overdue: tuple[OverdueSize, ...] = ()
    """The multi-slot requests that have waited too long, in the order in which they are served."""

    @property
    def has_pending(self) -> bool:
        """Whether any request is pending, with or without slots; a hold reason does not matter."""
        return bool(self.zero_slot_requests) or any(job.pending_slots for job in self.jobs)


@dataclass(frozen=True, slots=True)
class ConnectedAgent:
    """A connected agent, according to the pool's state."""

    idle: bool
    """Whether no allocation runs on the agent."""
    takes_work: bool = True
    """Whether the scheduler may place new work on the agent."""
    work: tuple[int, ...] = ()
    """The number of slots of each allocation on the agent; 0 for a zero-slot allocation."""
    free_slots: int = 0
    """The number of slots that new work may use."""
    is_closed: bool = False
    """Whether the agent takes no new work until a user's command, such as a drain or a disabled
    agent. An agent with a fault or an exclusion is not closed: it may take work again at any time.
    """

    @property
    def used_slots(self) -> int:
        """Return the number of slots that the agent's allocations use; 0 without work."""
        return sum(self.work)

    @property
    def is_movable(self) -> bool:
        """Whether the agent has work and each allocation uses slots. False for an idle agent.

        Such work would run on any agent with enough free slots. A zero-slot allocation is not
        movable: agents limit the number of zero-slot allocations instead.
        """
        return bool(self.work) and all(self.work)


class InstanceStatus(StrEnum):
    """An instance's status in the cloud's list. PENDING is an unfilled spot request."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EndReason:
    """The reason for the end of an instance, from the cloud or from the instance."""

    text: str
    """The reason for users; "" if the cloud gives none."""
    kind: ErrorKind = ErrorKind.BOOT
    """The error that counts for the offering if the instance's agent never enrolled.

    An end with `taken_back`, or after a notice, counts as an interruption instead.
    """
    taken_back: bool = False
    """Whether the cloud took back a spot instance."""


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """The reports of the cloud and the pool about an instance in a pass."""

    status: InstanceStatus | None
    """The cloud's status; None if the cloud does not list the instance."""
    agent: ConnectedAgent | None = None
    """The instance's agent; None while the agent is not connected."""
    notice_ms: int | None = None
    """The announced time at which the cloud takes the instance away; None without a notice."""
    rebalance: bool = False
    """Whether the cloud recommends replacing the instance."""
    end: EndReason | None = None
    """The reason for the instance's end, from the cloud or from the instance.

    None if the instance lives, or the reason is unknown.
    """
    boot_report: str = ""
    """The report of a failed boot that the instance sent itself, or ""."""
    has_enrolled: bool = False
    """Whether the agent has connected at any time, possibly between two passes."""
    is_joining: bool = False
    """Whether the agent has a live session that the pool has not processed yet."""
    zone: str = ""
    """The zone in the cloud's list; "" without one."""
    uid: str = ""
    """The cloud's number of the instance in the cloud's list; "" without one."""

    @property
    def boot_error(self) -> str:
        """Return the last line with text of the boot report, where the script names the failure.

        Return "the boot report is empty" if the report has no text, or if no report was sent.
        """
        lines = [line for line in self.boot_report.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "the boot report is empty"


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The scale decider's input: a pool's fleet at a moment."""

    settings: ProvisionerSettings
    offerings: tuple[Offering, ...]
    demand: Demand
    """The pool's pending work."""
    fleet: FleetRow
    """The fleet's stored row."""
    rows: tuple[InstanceRow, ...]
    """The pool's instances that have not ended."""
    observed: Mapping[str, ObservedInstance]
    """The observation of each instance in `rows`, by instance id."""
    pending: tuple[tuple[Offering, int], ...]
    """The offering and the number of instances of each launch whose outcome is unknown."""
    now_ms: int
    """The time of the pass."""
    random: Callable[[], float]
    """Returns a random number from 0 to below 1, for the jitter of back-offs."""
    api_down: bool = False
    """Whether agents cannot reach the cluster, which makes them look silent."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A planned launch of instances of a single offering."""

    offering: Offering
    count: int
    """The number of instances."""
    together: bool = False
    """Whether the instances serve one request: the cloud launches all or none, close together."""
    zone: str = ""
    """The zone of the request's existing instances; "" leaves the zone to the offering."""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The scale decider's result."""

    fleet: FleetRow
    """The fleet's new row."""
    changed_rows: tuple[InstanceRow, ...] = ()
    """The instance rows that differ from the snapshot's."""
    launches: tuple[Launch, ...] = ()
    """The launches to request."""
    disconnected: tuple[str, ...] = ()
    """The ids of instances that start to drain or end while their agents are not connected.

    The commit of the plan requires that these agents have not connected in the meantime.
    """
    reasons: tuple[str, ...] = field(default=())
    """The decisions, as texts for users."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a reconciliation pass."""

    reasons: tuple[str, ...] = ()
    """The decisions and errors of the pass, as texts for users."""
    retry_after_ms: int = 0
    """The delay until another pass should run, or 0 if nothing waits for one.

    Positive if another pass was too recent or had the lease, if this pass lost a race, or if a
    launch is still in progress.
    """
