"""What every scheduler sees and answers: jobs that ask and hold, agents, and a plan."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

PRIORITY_DEFAULT = 42
AUX_PER_AGENT_DEFAULT = 100

SchedulerKind = Literal["fair_share", "priority", "round_robin"]
FittingPolicy = Literal["best", "worst"]


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """How a pool decides.

    `preemption`: whether the priority scheduler may take slots back. `fitting`: the fullest agent
    that still has room, or the emptiest. `heterogeneous`: whether the agents of a gang may differ
    in size.
    """

    kind: SchedulerKind = "fair_share"
    preemption: bool = False
    fitting: FittingPolicy = "best"
    heterogeneous: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A queued allocation.

    `ticket` is "submitted_ms.requested_ms.trial_id", zero-padded: tickets sort as requests are
    served. `group`: the job it counts for. `label` and `single_agent` (it is never spread over
    several agents) are those of its job.
    """

    allocation: str
    slots: int
    ticket: str = ""
    group: int = 0
    label: str = ""
    single_agent: bool = False
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """So many slots on one agent; 0 for a place beside the slots."""

    agent: str
    slots: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A running allocation.

    `start` numbers the starts of a pool, smaller is older. `leaving`: it was asked to go before and
    has its slots until it does. `places`: where it runs.
    """

    allocation: str
    slots: int
    group: int
    start: int
    preemptible: bool = True
    leaving: bool = False
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A group of allocations that share settings: an experiment with its trials.

    `pending` (by ticket) and `holdings` may be lazy, but can be walked more than once. The sums
    over them are given, so that nobody walks ten thousand trials to know what their job wants:
    `pending_slots` counts the pending requests of each size; `held_slots` is held by all holdings,
    `fixed_slots` by those that cannot be preempted, `leaving_slots` by those that were asked to go.
    A `position` of 0 is none. `label`: of the agents that it may run on, and that of all its
    requests, as `single_agent` is.
    """

    group: int
    submitted_ms: int
    weight: float = 1.0
    priority: int = PRIORITY_DEFAULT
    position: Decimal = Decimal(0)
    max_slots: int | None = None
    label: str = ""
    single_agent: bool = False
    pending: Iterable[Request] = ()
    holdings: Iterable[Holding] = ()
    pending_slots: Mapping[int, int] = field(default_factory=dict)
    held_slots: int = 0
    fixed_slots: int = 0
    leaving_slots: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """An agent that takes work: `total` slots, of which `free` are, and as many places beside them.

    One that is `draining` takes none, but what it holds still counts: its total is what is held
    there, and nothing of it is free. A disabled agent is left out.
    """

    agent: str
    total: int
    free: int
    label: str = ""
    aux_total: int = AUX_PER_AGENT_DEFAULT
    aux_free: int = AUX_PER_AGENT_DEFAULT
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Give `request` its slots on these places, in the order of the ranks."""

    request: Request
    places: tuple[Place, ...]

    @property
    def agent(self) -> str:
        """Where the first rank runs."""
        return self.places[0].agent


@dataclass(frozen=True, slots=True)
class Victim:
    """Ask this allocation to save its work and go."""

    holding: Holding
    reason: str


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What to start, in order; whom to ask to go; and why the first request left behind waits (""
    if none does).
    """

    starts: tuple[Start, ...]
    victims: tuple[Victim, ...] = ()
    waits: str = ""


def summed(job: Job) -> Job:
    """The job with its sums, where both its pending requests and its holdings are at hand."""
    holdings = tuple(job.holdings)
    return replace(
        job,
        pending=tuple(job.pending),
        holdings=holdings,
        pending_slots=Counter(request.slots for request in job.pending),
        held_slots=sum(one.slots for one in holdings),
        fixed_slots=sum(one.slots for one in holdings if not one.preemptible),
        leaving_slots=sum(one.slots for one in holdings if one.leaving),
    )
