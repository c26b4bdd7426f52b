"""Inputs and results of the schedulers: jobs, requests and allocations, agents, and plans."""

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
    """The scheduler of a pool and its options.

    `preemption`: whether the priority scheduler may preempt. `fitting`: the fullest agent that
    still has room, or the emptiest. `heterogeneous`: whether the agents of a gang may differ in
    size.
    """

    kind: SchedulerKind = "fair_share"
    preemption: bool = False
    fitting: FittingPolicy = "best"
    heterogeneous: bool = False


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """A queued allocation.

    `ticket` is "submitted_ms.requested_ms.trial_id", zero-padded: requests are served in the order
    of tickets. `group`: its job. `label` and `single_agent` (it may not span several agents) are
    those of its job.
    """

    allocation_id: str
    slots: int
    ticket: str = ""
    group: int = 0
    label: str = ""
    single_agent: bool = False
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """A number of slots on one agent; 0 for an auxiliary place, which takes none."""

    agent: str
    slots: int


@dataclass(frozen=True, slots=True)
class RunningAllocation:
    """A running allocation.

    `start` numbers the starts of a pool, smaller is older. `leaving`: it was already asked to stop
    and keeps its slots until it does. `placements`: where it runs.
    """

    allocation_id: str
    slots: int
    group: int
    start: int
    preemptible: bool = True
    leaving: bool = False
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A group of allocations that share settings: an experiment with its trials.

    `pending` (by ticket) and `allocations` may be lazy, but can be iterated more than once. The
    totals are given, so that nobody walks ten thousand trials to know what their job wants:
    `pending_slots` counts the pending requests of each size; `held_slots` are the slots of all
    allocations, `non_preemptible_slots` of those that cannot be preempted, `leaving_slots` of those
    asked to stop. A `position` of 0 is none. `label`: of the agents that it may run on, as for all
    its requests; so is `single_agent`. `waits_since_ms`: since when it has waited for slots and
    held none; None: it does not, or nobody knows.
    """

    group: int
    submitted_ms: int
    weight: float = 1.0
    priority: int = PRIORITY_DEFAULT
    position: Decimal = Decimal(0)
    max_slots: int | None = None
    label: str = ""
    single_agent: bool = False
    pending: Iterable[AllocationRequest] = ()
    allocations: Iterable[RunningAllocation] = ()
    pending_slots: Mapping[int, int] = field(default_factory=dict)
    held_slots: int = 0
    non_preemptible_slots: int = 0
    leaving_slots: int = 0
    waits_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """An agent that takes work: `total` slots, of which `free` are, and | auxiliary places in the
    same way.

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
class AllocationStart:
    """The start of `request` on these agents, in the order of the ranks."""

    request: AllocationRequest
    placements: tuple[Placement, ...]

    @property
    def agent(self) -> str:
        """The agent of the first rank."""
        return self.placements[0].agent


@dataclass(frozen=True, slots=True)
class Victim:
    """An allocation to preempt: it is asked to checkpoint and stop."""

    allocation: RunningAllocation
    reason: str


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """The allocations to start, in order, and to preempt; and why the first request left pending
    waits ("" if none is).
    """

    starts: tuple[AllocationStart, ...]
    victims: tuple[Victim, ...] = ()
    wait_reason: str = ""


def job_with_totals(job: Job) -> Job:
    """The job with its totals, computed from its pending requests and its allocations."""
    allocations = tuple(job.allocations)
    return replace(
        job,
        pending=tuple(job.pending),
        allocations=allocations,
        pending_slots=Counter(request.slots for request in job.pending),
        held_slots=sum(one.slots for one in allocations),
        non_preemptible_slots=sum(one.slots for one in allocations if not one.preemptible),
        leaving_slots=sum(one.slots for one in allocations if one.leaving),
    )
