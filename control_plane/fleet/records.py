"""Records of a pool's fleet: offerings, launch intents, instances, and the fleet as a whole. Pure.

Only the provisioner writes these records. Times are epoch milliseconds; prices are dollars per
hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from control_plane.rows import fleet_rows

MS_PER_HOUR = 3_600_000


def instances_partition(pool: str) -> str:
    """Return the partition of a pool's live instances. The sort key is the instance id."""
    return fleet_rows.INSTANCE.partition_of(pool)


class Market(StrEnum):
    """The market on which an instance is bought. The cloud may take spot instances away."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True)
class Offering:
    """An instance type in a zone on a market, which a pool may launch."""

    name: str
    """The offering's name, unique in its pool."""
    instance_type: str
    zone: str
    """The cloud's zone; "" for any zone."""
    market: Market
    slots: int
    price_per_hour: float = 0.0
    """The price in dollars; 0 if unknown."""


class InstanceState(StrEnum):
    """The lifecycle of an instance, in this order; a state may be skipped."""

    STARTING = "STARTING"
    """The instance was launched and its agent has not enrolled."""
    RUNNING = "RUNNING"
    """The agent has enrolled."""
    DRAINING = "DRAINING"
    """The agent takes no new work and finishes the work that it has."""
    TERMINATING = "TERMINATING"
    """The cloud is to end the instance, and bills it until it is gone."""
    ENDED = "ENDED"
    """The instance is gone and costs nothing more."""


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance of a pool."""

    id: str
    """The cloud's id, which is also the name of the instance's agent."""
    pool: str
    offering: Offering
    state: InstanceState
    launched_ms: int
    """The time at which the launch was first requested."""
    intent: str
    """The id of the launch intent."""
    connected_ms: int | None = None
    """The time at which a pass first saw that the agent had connected."""
    ended_ms: int | None = None
    reason: str = ""
    """Why the instance drains or ends, for users."""
    notice_ms: int | None = None
    """The announced time at which the cloud takes the instance away."""
    idle_ms: int | None = None
    """The time since which the agent has been connected without work."""
    silent_ms: int | None = None
    """The time since which the agent has counted as silent."""
    missed_ms: int | None = None
    """The time since which the cloud's list has lacked the instance."""
    boot_log: str = ""
    """The last lines of a failed boot."""
    zone: str = ""
    """The cloud's zone, or "" if unknown."""
    uid: str = ""
    """The cloud's number of the instance, if the id is a name that another instance may have.

    "" if the number is unknown, and in a cloud that never gives an id twice.
    """

    def cost(self, now_ms: int) -> float:
        """Return the cost in dollars from the launch to the end, or to `now_ms`."""
        until_ms = now_ms if self.ended_ms is None else self.ended_ms
        hours = max(0, until_ms - self.launched_ms) / MS_PER_HOUR
        return hours * self.offering.price_per_hour


@dataclass(frozen=True, slots=True)
class IntentRow:
    """An attempt to launch instances: an immutable request, stored before the cloud is asked.

    The same request is repeated until the cloud's response closes the intent.
    """

    id: str
    cluster: str
    pool: str
    offering: Offering
    count: int
    """The number of instances to launch."""
    token: str
    """The token that makes a repeated request safe."""
    created_ms: int
    section: str = ""
    """The provider's own settings at the time of the launch, as JSON."""
    together: bool = False
    """Whether the instances serve one gang: the cloud launches all or none, close together."""
    zone: str = ""
    """The zone to launch in if the offering names none; "" for any zone."""
    singly: bool = False
    """Whether a call launches each instance, because the cloud refuses calls for several."""


class ErrorKind(StrEnum):
    """The kind of a launch error. BOOT means that an instance's agent never enrolled."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    AUTH = "auth"
    CONFIGURATION = "configuration"
    THROTTLED = "throttled"
    BOOT = "boot"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OfferingHealth:
    """The recent failures of an offering."""

    errors: int = 0
    """The number of consecutive errors."""
    faults: int = 0
    """The number of errors since an agent of the offering last connected.

    Capacity, quota and throttling errors do not count, because they may pass by themselves.
    """
    kind: ErrorKind | None = None
    """The kind of the last error."""
    message: str = ""
    """The message of the last error."""
    failed_ms: int = 0
    """The time of the last error."""
    retry_ms: int = 0
    """The time before which the offering is not tried again."""
    given_up: bool = False
    """Whether the offering is only tried with a single instance."""
    interrupted_ms: int = 0
    """The time at which the cloud last took away an instance of the offering."""
    boot_failed_ms: int = 0
    """The time of the last failed boot."""


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A pool's fleet as a whole. Each commit to the fleet's rows is conditional on its revision."""

    pool: str
    provider: str = ""
    """The provisioner settings of the last pass, as JSON."""
    passed_ms: int = 0
    """The start of the last complete pass."""
    resumed_ms: int = 0
    """The start of the first pass after the last gap without passes."""
    leased_until_ms: int = 0
    """The end of the running pass's lease; 0 after a complete pass."""
    tokens: float = 0.0
    """The number of drains and terminations that may start, as of `tokens_ms`."""
    tokens_ms: int = 0
    health: Mapping[str, OfferingHealth] = field(default_factory=dict)
    """The health of offerings with recent failures, by offering name."""
    waits: str = ""
    """Why pending work gets no instance, for users; "" if it gets one or no work is pending."""
    trouble: str = ""
    """The cloud error that ended the last pass early, or ""."""
    launches: int = 0
    """The number of launch intents so far, which numbers the next intent."""
    spare_ms: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The start times of spare instances, by instance size in slots.

    The Nth time of a size is the time since which the pool has had at least N spare instances.
    """
    outage_ms: int = 0
    """The last time at which a pass saw that agents could not reach the API."""
    offered: tuple[Offering, ...] = ()
    """The offerings of the last pass with the lowest prices per slot."""
    batch_refused_ms: int = 0
    """The time at which the cloud refused a call for several instances; 0 without a refusal.

    The pool launches by a call for each instance until a later attempt succeeds.
    """
    warning: str = ""
    """What works with restrictions, for users, such as the refusal of a call for several instances.

    "" without restrictions.
    """
