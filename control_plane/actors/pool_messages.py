"""Every message to a resource pool, in the past tense."""

from dataclasses import dataclass

from control_plane.actors.slots import OPEN, Availability


@dataclass(frozen=True, slots=True)
class PoolConfigured:
    """Constructor and change of settings."""

    name: str


@dataclass(frozen=True, slots=True)
class SlotsRequested:
    """A trial wants `slots` slots for its allocation `epoch`; `ticket` orders the queue.

    `group` is its experiment's id, 0 for none, which may hold `max_slots` slots, None: any number.
    """

    trial_id: int
    epoch: int
    slots: int
    ticket: str
    group: int = 0
    max_slots: int | None = None


@dataclass(frozen=True, slots=True)
class GroupLimited:
    """An experiment's limit was changed while it ran: the latest word on a group counts."""

    group: int
    max_slots: int | None


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
    """An agent enrolled; `slots` are the ids of its slots."""

    agent: str
    epoch: int
    slots: tuple[int, ...]
    availability: Availability = OPEN


@dataclass(frozen=True, slots=True)
class AgentAvailabilityChanged:
    """Other slots of the agent take work than before."""

    agent: str
    epoch: int
    availability: Availability


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent's lease lapsed: whatever ran there is lost."""

    agent: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AuditFound:
    """Allocations the pool still holds though their trials have let go of them."""

    stale: tuple[SlotsReleased, ...]


@dataclass(frozen=True, slots=True)
class SchedulingContinued:
    """More could start than one commit holds."""


PoolMessage = (
    PoolConfigured
    | SlotsRequested
    | GroupLimited
    | SlotsReleased
    | AgentJoined
    | AgentAvailabilityChanged
    | AgentLost
    | AuditFound
    | SchedulingContinued
)
