"""What a decision about a pool's instances is made from, and what it says.

Times are epoch milliseconds and durations milliseconds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil

from control_plane.fleet.records import FleetRow, InstanceRow, Market, Offering

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class ProvisionerSettings:
    """How many instances a pool has, and of what.

    `offerings` are in the order of preference; none: what the cloud itself offers. Spot offerings
    come before the others; `on_demand_fallback`: the others are taken while no spot offering can
    be had; `on_demand_base`: the share of instances, 0 to 1, that are on demand all the same.
    `launch_error_limit`: errors in a row, other than no capacity, after which an offering is given
    up; 0: never. `section`: the cloud's own settings, as JSON.
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
    def place(self) -> str:
        """The account and region, or whatever an id of an instance is unique in."""
        fields = json.loads(self.section)
        return ":".join(str(it) for it in (self.kind, fields.get("project"), fields.get("region")))

    @property
    def terminations_max(self) -> int:
        """Terminations that may be begun at once, and again within each minute: a quarter of a
        large pool, all of a small one.
        """
        return max(5, ceil(self.max_instances / 4))


@dataclass(frozen=True, slots=True)
class WorkDue:
    """A job that is to be done by `deadline_ms`: how far it has come, from 0 to 1 or None if nobody
    knows, in the `worked_ms` for which it had machines.
    """

    submitted_ms: int
    deadline_ms: int
    worked_ms: int = 0
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class JobDemand:
    """What of a job waits: how many requests of each size in slots. `room`: slots it may have
    beside those it holds, None for any number; `single_agent`: no request of it is ever spread.
    `due`: it has a deadline; `market`: its instances must be of that, None: of any.
    """

    sizes: Mapping[int, int]
    room: int | None = None
    single_agent: bool = False
    due: WorkDue | None = None
    market: Market | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits in a pool. `zero_slot`: requests without slots, of which an instance takes
    `aux_per_agent`. `held_back`: why what waits is to get no instances, "" if it may.
    """

    jobs: tuple[JobDemand, ...] = ()
    zero_slot: int = 0
    aux_per_agent: int = 100
    held_back: str = ""

    @property
    def waits(self) -> bool:
        """Whether anything waits."""
        return bool(self.zero_slot) or any(job.sizes for job in self.jobs)


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """A connected agent in the pool's books. `takes_work`: something new may be placed on it."""

    idle: bool
    takes_work: bool = True
    used_slots: int = 0


class InstanceStatus(StrEnum):
    """What a cloud says of an instance. PENDING: a spot request that nobody has filled yet."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Seen:
    """An instance as the cloud and the pool's books show it. `status` None: the cloud does not
    list it; `agent` None: its agent is not connected.
    """

    status: InstanceStatus | None
    agent: AgentSeen | None = None
    notice_ms: int | None = None
    rebalance: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a decision looks at. `pending`: instances of launches whose answer is not known,
    by offering; `seen` has an entry for each of `rows`; `draw` gives numbers from 0 to below 1.
    """

    settings: ProvisionerSettings
    offerings: tuple[Offering, ...]
    demand: Demand
    fleet: FleetRow
    rows: tuple[InstanceRow, ...]
    seen: Mapping[str, Seen]
    pending: tuple[tuple[Offering, int], ...]
    now_ms: int
    draw: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Launch:
    """Instances to be asked for."""

    offering: Offering
    count: int


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What becomes of a fleet: its row, the instances whose rows change, and what to launch.

    `unseen`: instances that end because their agents are not connected: true only while these do
    not enrol. `reasons` tell people what was decided.
    """

    fleet: FleetRow
    changed: tuple[InstanceRow, ...] = ()
    launches: tuple[Launch, ...] = ()
    unseen: tuple[str, ...] = ()
    reasons: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of a look at a pool: what a pass decided, for people. Where it was too early for a
    pass, `again_ms` is in how many ms it no longer is.
    """

    reasons: tuple[str, ...] = ()
    again_ms: int = 0
