"""Records of a pool's instances: offerings, launches under way, instances, and the fleet.

The provisioner alone writes them. Times are epoch milliseconds, prices dollars an hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MS_PER_HOUR = 3_600_000


def instances_partition(pool: str) -> str:
    """The partition of a pool's instances that have not ended, by id."""
    return f"instances#{pool}"


class Market(StrEnum):
    """The market an instance is bought on. Spot instances may be taken away."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to get an instance; `name` is unique in its pool."""

    name: str
    instance_type: str
    zone: str
    market: Market
    slots: int
    price_per_hour: float = 0.0


class InstanceState(StrEnum):
    """The lifecycle of an instance.

    DRAINING: its agent takes no new work; TERMINATING: the cloud was asked to end it, and bills it
    until it is gone; ENDED: it costs nothing more.
    """

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    TERMINATING = "TERMINATING"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance; its id is the name of its agent.

    `connected_ms`: its agent first connected; `notice_ms`: the cloud announced that it takes it
    away; `idle_ms`, `silent_ms`, `missed_ms`: since when the agent has nothing to do, is not
    connected, and the cloud does not list it. `boot_log`: the last lines of a boot that failed;
    `zone`: where it is, as its cloud says.
    """

    id: str
    pool: str
    offering: Offering
    state: InstanceState
    launched_ms: int
    intent: str
    connected_ms: int | None = None
    ended_ms: int | None = None
    reason: str = ""
    notice_ms: int | None = None
    idle_ms: int | None = None
    silent_ms: int | None = None
    missed_ms: int | None = None
    boot_log: str = ""
    zone: str = ""

    def cost(self, now_ms: int) -> float:
        """The cost in dollars by `now_ms`."""
        until_ms = now_ms if self.ended_ms is None else self.ended_ms
        hours = max(0, until_ms - self.launched_ms) / MS_PER_HOUR
        return hours * self.offering.price_per_hour


@dataclass(frozen=True, slots=True)
class IntentRow:
    """One attempt to launch `count` instances, immutable: it is sent as it is, however often, until
    an answer closes it. `section`: the provider's settings at that time, as JSON; `together`: all
    or none of them, close to each other, for a gang; `zone`: where else than its offering says.
    """

    id: str
    cluster: str
    pool: str
    offering: Offering
    count: int
    token: str
    created_ms: int
    section: str = ""
    together: bool = False
    zone: str = ""


class ErrorKind(StrEnum):
    """The reasons why the cloud gave no instance. BOOT: it gave one, whose agent never enrolled."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    AUTH = "auth"
    CONFIGURATION = "configuration"
    THROTTLED = "throttled"
    BOOT = "boot"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OfferingHealth:
    """The recent failures of an offering. `errors` launches failed in a row, the last as told by
    `kind` and `message`; it is not tried before `retry_ms`, and with one instance if `given_up`.

    `faults`: errors that time alone does not heal, since an agent of it last connected;
    `boot_failed_ms`, `interrupted_ms`: when an instance of it last failed to boot, and when one was
    last taken away.
    """

    errors: int = 0
    faults: int = 0
    kind: ErrorKind | None = None
    message: str = ""
    failed_ms: int = 0
    retry_ms: int = 0
    given_up: bool = False
    interrupted_ms: int = 0
    boot_failed_ms: int = 0


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A pool's fleet as a whole, whose revision fences every write to its instances.

    `provider`: the settings it was last reconciled with, as JSON; `passed_ms`: when that was;
    `resumed_ms`: the end of the last time without passes; `leased_until_ms`: a pass holds the
    lease. `tokens`: terminations that may start, as of `tokens_ms`. `health` by offering, of those
    with recent failures. `waits`: why pending work gets no instance; "": it gets one, or there is
    none. `trouble`: why the cloud could not be asked. `launches` numbers the intents. `spare_ms`:
    by the slots of instances, since when one of them, two of them and so on are spare. `outage_ms`:
    when agents were last known not to reach the API. `offered`: the cheapest offerings for a slot
    of those that the pool would launch, as of the last pass.
    """

    pool: str
    provider: str = ""
    passed_ms: int = 0
    resumed_ms: int = 0
    leased_until_ms: int = 0
    tokens: float = 0.0
    tokens_ms: int = 0
    health: Mapping[str, OfferingHealth] = field(default_factory=dict)
    waits: str = ""
    trouble: str = ""
    launches: int = 0
    spare_ms: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    outage_ms: int = 0
    offered: tuple[Offering, ...] = ()
