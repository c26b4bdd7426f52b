"""Inputs and results of the scale decider: settings, demand, observed instances, and its plan.

Times are epoch milliseconds and durations milliseconds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from control_plane.fleet.records import ErrorKind, FleetRow, InstanceRow, Market, Offering
from control_plane.scheduling.reservations import OverdueSize

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProvisionerSettings:
    """The provider settings of a pool: how many instances it has, and of which offerings.

    `offerings` are in the order of preference; empty: what the cloud itself offers. Spot offerings
    come before on-demand ones; `on_demand_fallback`: on-demand offerings are used while no spot
    offering is available; `on_demand_base`: the share of instances, 0 to 1, that are always on
    demand. `launch_error_limit`: errors in a row, other than no capacity or quota, after which an
    offering is tried with one instance, once an hour at most; 0: never. `kind` is the provider's
    type and `section` its own settings, as JSON.
    """

    kind: str
    min_instances: int = 0
    max_instances: int = 5
    idle_ms_max: int = 20 * MINUTE_MS
    starting_ms_max: int = 20 * MINUTE_MS
    launch_error_limit: int = 10
    offerings: tuple[Offering, ...] = ()
    on_demand_fallback: bool = True
    on_demand_base: float = 0.0
    section: str = "{}"

    @property
    def location(self) -> str:
        """The account and region within which an instance's id is unique."""
        fields = json.loads(self.section)
        names = (self.kind, fields.get("project"), fields.get("region"))
        return ":".join(map(str, names))

    @property
    def terminations_max(self) -> int:
        """Terminations that may start at once, and again within each minute: a quarter of a large
        pool, all of a small one.
        """
        return max(5, ceil(self.max_instances / 4))


@dataclass(frozen=True, slots=True)
class DeadlineProgress:
    """How far a job with a deadline has come: `progress` (0 to 1; None: unknown) after `worked_ms`
    in which it had machines.
    """

    submitted_ms: int
    deadline_ms: int
    worked_ms: int = 0
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class JobDemand:
    """The pending requests of one job.

    `pending_slots` counts them by their slots. `remaining_slots`: how many slots the job may have
    beside those it holds, None for any number; `single_agent`: none of its requests may span
    several agents; `deadline_progress`: its progress, if it has a deadline; `market`: the market
    that its instances must be bought on, None for any.
    """

    pending_slots: Mapping[int, int]
    remaining_slots: int | None = None
    single_agent: bool = False
    deadline_progress: DeadlineProgress | None = None
    market: Market | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """The pending work of a pool. `zero_slot_requests`: requests without slots, of which an
    instance takes `aux_per_agent`. `hold_reason`: why pending work gets no instances, "" if it may.
    `overdue`: the requests for several slots that have waited too long, the next one first.
    """

    jobs: tuple[JobDemand, ...] = ()
    zero_slot_requests: int = 0
    aux_per_agent: int = 100
    hold_reason: str = ""
    overdue: tuple[OverdueSize, ...] = ()

    @property
    def has_pending(self) -> bool:
        """Whether any request is pending."""
        return bool(self.zero_slot_requests) or any(job.pending_slots for job in self.jobs)


@dataclass(frozen=True, slots=True)
class ConnectedAgent:
    """A connected agent, as the pool knows it. `takes_work`: new work may be placed on it; `work`:
    the slots that each allocation has there; `free_slots`: those that new work may have.
    """

    idle: bool
    takes_work: bool = True
    work: tuple[int, ...] = ()
    free_slots: int = 0

    @property
    def used_slots(self) -> int:
        """The slots that are in use."""
        return sum(self.work)

    @property
    def is_movable(self) -> bool:
        """Whether all of its work would run wherever so many slots are free; what has no slots
        needs a place besides.
        """
        return bool(self.work) and all(self.work)


class InstanceStatus(StrEnum):
    """An instance's status as its cloud reports it. PENDING: an unfilled spot request."""

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
    """Why an instance ended, as its cloud says: `text`, and what that means where its agent had not
    enrolled yet; `taken_back`: the cloud took a spot instance back.
    """

    text: str
    kind: ErrorKind = ErrorKind.BOOT
    taken_back: bool = False


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """An instance as the cloud and the pool report it. `status` None: the cloud does not list it;
    `agent` None: its agent is not connected; `notice_ms`: when it is taken away, as announced;
    `rebalance`: the cloud advises to leave it; `end`: why it ends or has ended; `boot_report`: what
    it says itself of a boot that failed; `has_enrolled`: its agent was connected at some time,
    which no pass may have seen; `is_joining`: its agent has a live session, of which the pool has
    not processed the message yet.
    """

    status: InstanceStatus | None
    agent: ConnectedAgent | None = None
    notice_ms: int | None = None
    rebalance: bool = False
    end: EndReason | None = None
    boot_report: str = ""
    has_enrolled: bool = False
    is_joining: bool = False

    @property
    def boot_error(self) -> str:
        """The last line of the report, in which the boot script says what failed."""
        lines = [line for line in self.boot_report.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it says nothing"


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The scale decider's input: a pool's fleet at one moment.

    `pending`: instances of launches whose answer is not known, by offering; `observed` has an entry
    for each of `rows`; `random` gives numbers from 0 to below 1; `api_down`: agents cannot reach
    the cluster, so that their silence says nothing.
    """

    settings: ProvisionerSettings
    offerings: tuple[Offering, ...]
    demand: Demand
    fleet: FleetRow
    rows: tuple[InstanceRow, ...]
    observed: Mapping[str, ObservedInstance]
    pending: tuple[tuple[Offering, int], ...]
    now_ms: int
    random: Callable[[], float]
    api_down: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A number of instances of one offering to launch. `together`: for one gang, so all or none of
    them, close to each other; `zone`: where the rest of that gang is, "" for any.
    """

    offering: Offering
    count: int
    together: bool = False
    zone: str = ""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The scale decider's result: the fleet's new row, instance rows that change, and launches.

    `disconnected`: instances that end because their agents are not connected, which must still be
    so when the plan is committed. `reasons` tell users what was decided.
    """

    fleet: FleetRow
    changed_rows: tuple[InstanceRow, ...] = ()
    launches: tuple[Launch, ...] = ()
    disconnected: tuple[str, ...] = ()
    reasons: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a reconciliation pass: what it decided, in words for users. Where it was too
    early for a pass, or the cloud does not say yet what comes of a launch, `retry_after_ms` is the
    time until the next one may run.
    """

    reasons: tuple[str, ...] = ()
    retry_after_ms: int = 0
