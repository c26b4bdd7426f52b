"""The schedulers written again as plainly as the rules.

All state is computed each time, and every list is copied.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any

from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Job,
    Placement,
    RunningAllocation,
    SchedulerRules,
)
from tests.properties.scheduling_oracle_cluster import Cluster

Started = tuple[str, tuple[Placement, ...]]


@dataclass
class Decision:
    """The starts and the victims of a plan."""

    starts: list[Started] = field(default_factory=list)
    victims: list[str] = field(default_factory=list)


def expected_decision(
    jobs: Sequence[Job], agents: Sequence[AgentCapacity], rules: SchedulerRules
) -> Decision:
    """Return the decision that a scheduler should make."""
    every = Decision()
    for label in sorted({job.label for job in jobs}):
        some = [job for job in jobs if job.label == label]
        cluster = Cluster([a for a in agents if a.label == label], rules)
        if rules.kind == "fair_share":
            one = fair_share(some, cluster)
        elif rules.kind == "round_robin":
            one = apply_max_slots(round_robin(some, cluster), some)
        else:
            one = apply_max_slots(priority(some, cluster, rules.preemption), some)
        every.starts += one.starts
        every.victims += one.victims
    return every


def expected_starts(selected: Iterable[AllocationRequest], cluster: Cluster) -> list[Started]:
    """Section 1: fit the selected requests again on the changing agents; some may fail."""
    live = deepcopy(cluster)
    starts: list[Started] = []
    for request in selected:
        places = live.fit(request)
        live.change(places, -1)
        if places:
            starts.append((request.allocation_id, places))
    return starts


@dataclass
class Group:
    """A group of a fair share."""

    job: Job
    demand: int
    active: int
    presubscribed: int
    offered: int = 0
    preoffer: int = 0
    disabled: bool = False
    pending: list[AllocationRequest] = field(default_factory=list)

    @property
    def time(self) -> tuple[int, int]:
        return (self.job.submitted_ms, self.job.group)

    @property
    def staying(self) -> int:
        return self.active - sum(h.slots for h in self.job.allocations if h.leaving)

    @property
    def is_over_limit(self) -> bool:
        return self.job.max_slots is not None and self.staying > self.job.max_slots

    @property
    def is_open(self) -> bool:
        return not self.disabled and self.offered < self.demand


def fair_share(jobs: Sequence[Job], cluster: Cluster) -> Decision:
    """Section 2: the fair share."""
    pending = sorted((r for job in jobs for r in job.pending), key=lambda r: r.ticket)
    selected = [r for r in pending if r.slots == 0 and cluster.fit(r)]
    capacity = sum(agent.total for agent in cluster.agents)
    groups = [group for job in jobs if (group := group_of(job, cluster)) is not None]
    groups.sort(key=lambda group: (group.demand, group.time))
    fill_offers(groups, capacity)
    selected += requests_within_offers(groups, cluster)
    starts = expected_starts(selected, cluster)
    live = deepcopy(cluster)
    for _, places in starts:
        live.change(places, -1)
    victims = fair_share_victims(groups, live, {name for name, _ in starts})
    if not victims and not any(h.leaving and h.slots for job in jobs for h in job.allocations):
        starts += idle_starts(groups, live, starts)
    return Decision(starts, [holding.allocation_id for holding in victims])


def fair_share_victims(
    groups: Sequence[Group], live: Cluster, started: set[str]
) -> list[RunningAllocation]:
    """Return victims for the excess over shares.

    Empty unless a request within its group's share can use the slots.
    """
    after = deepcopy(live)
    for group in groups:
        for holding in group.job.allocations:
            if holding.leaving and holding.slots:
                after.change(holding.placements, 1)
    unmet = unmet_requests(groups, after, started)
    draining = {agent.name for agent in live.agents if agent.draining}
    oldest = attrgetter("start")
    for key in (oldest, crowded_agents_first(groups)):
        victims = [
            h for group in groups for h in excess_of(group, oldest if group.is_over_limit else key)
        ]
        trial = deepcopy(after)
        for holding in victims:
            trial.change(holding.placements, 1)
        drains = any(all(p.agent in draining for p in h.placements) for h in victims)
        is_of_use = drains or any(trial.fit(request) for request in unmet)
        if is_of_use and moves_on(groups, live, started, victims):
            return victims
    return [h for g in groups if g.is_over_limit for h in excess_of(g, oldest)]


def moves_on(
    groups: Sequence[Group], live: Cluster, started: set[str], victims: Sequence[RunningAllocation]
) -> bool:
    """Return whether other requests than the victims' start after the victims left."""
    going = list(victims)
    for group in groups:
        going += [h for h in group.job.allocations if h.leaving and h.slots]
    draining = {agent.name for agent in live.agents if agent.draining}
    if any(all(p.agent in draining for p in h.placements) for h in going):
        return True
    cluster = deepcopy(live)
    for holding in going:
        cluster.change(holding.placements, 1)
    later = [group_of(job_after(group.job, started, going), cluster) for group in groups]
    again = [group for group in later if group is not None]
    again.sort(key=lambda group: (group.demand, group.time))
    fill_offers(again, sum(agent.total for agent in cluster.agents))
    selected = list(requests_within_offers(again, cluster))
    came = Counter(
        (next(r.group for r in selected if r.allocation_id == name), sum(p.slots for p in places))
        for name, places in expected_starts(selected, cluster)
    )
    return bool(came - Counter((h.group, h.slots) for h in going))


def requests_within_offers(
    groups: Sequence[Group], cluster: Cluster
) -> Iterator[AllocationRequest]:
    for group in groups:
        budget = group.offered - group.active
        for request in group.job.pending:
            if 0 < request.slots <= budget and cluster.fit(request):
                budget -= request.slots
                yield request


def job_after(job: Job, started: set[str], going: Sequence[RunningAllocation]) -> Job:
    """Return the job after all starts run, and victims wait behind other trials."""
    gone = [h for h in going if h.group == job.group]
    again = [
        AllocationRequest(h.allocation_id, h.slots, "", h.group, job.label, job.single_agent)
        for h in gone
    ]
    begun = [
        RunningAllocation(r.allocation_id, r.slots, r.group, 0, r.preemptible)
        for r in job.pending
        if r.allocation_id in started
    ]
    waiting = [r for r in job.pending if r.allocation_id not in started]
    stay = [h for h in job.allocations if h not in gone]
    return replace(job, pending=[*waiting, *again], allocations=[*stay, *begun])


def crowded_agents_first(
    groups: Sequence[Group],
) -> Callable[[RunningAllocation], tuple[int, str, int]]:
    """Return a sort key: first the agents with most slots of groups over their shares."""
    held: Counter[str] = Counter()
    for group in groups:
        for place in (p for h in group.job.allocations for p in h.placements):
            held[place.agent] += place.slots if group.staying > group.offered else 0
    return lambda h: min((-held[p.agent], p.agent, h.start) for p in h.placements)


def excess_of(group: Group, key: Callable[[RunningAllocation], Any]) -> Iterator[RunningAllocation]:
    staying = group.staying
    for holding in sorted(group.job.allocations, key=key):
        may_go = holding.slots and holding.preemptible and not holding.leaving
        if may_go and staying > group.offered:
            staying -= holding.slots
            yield holding


def unmet_requests(
    groups: Sequence[Group], cluster: Cluster, started: set[str]
) -> list[AllocationRequest]:
    """Return the requests within shares that do not fit on `cluster`."""
    unmet = []
    for group in groups:
        own = [r for r in group.job.pending if r.slots]
        budget = group.offered - group.staying
        budget -= sum(r.slots for r in own if r.allocation_id in started)
        for request in own:
            if request.allocation_id in started or request.slots > budget:
                continue
            if places := cluster.fit(request):
                cluster.change(places, -1)
                budget -= request.slots
            else:
                unmet.append(request)
    return unmet


def idle_starts(groups: Sequence[Group], live: Cluster, starts: Sequence[Started]) -> list[Started]:
    """Return the starts that fit beyond the shares, in turns."""
    more: list[Started] = []
    taken = {name for name, _ in starts}
    queues = [
        (g.job, [r for r in g.job.pending if r.slots and r.allocation_id not in taken])
        for g in groups
    ]
    while any(queue for _, queue in queues):
        for job, queue in queues:
            while queue:
                request = queue.pop(0)
                places = live.fit(request) if has_room(job, [*starts, *more], request) else ()
                live.change(places, -1)
                if places:
                    more.append((request.allocation_id, places))
                    break
    return more


def group_of(job: Job, cluster: Cluster) -> Group | None:
    pending = [r for r in job.pending if r.slots and cluster.could_ever(r)]
    active = sum(h.slots for h in job.allocations)
    fixed = sum(h.slots for h in job.allocations if not h.preemptible)
    demand = active + sum(r.slots for r in pending)
    if demand == 0:
        return None
    if job.max_slots is not None:
        demand = min(demand, job.max_slots)
    return Group(job, demand, active, fixed, fixed, fixed, pending=pending)


def fill_offers(groups: list[Group], capacity: int) -> None:
    left = max(0, capacity - sum(group.presubscribed for group in groups))
    total = weight(groups)
    latest = sorted(groups, key=lambda group: group.time, reverse=True)
    while True:
        start, was_open = left, False
        for group in groups:
            if not group.is_open:
                continue
            was_open = True
            left -= serve_group(group, start, left, total)
            if group.offered == group.demand:
                total = weight(groups)
        if left > 0:
            if not was_open:
                return
            continue
        for group in latest:
            smallest = min((r.slots for r in group.pending), default=0)
            if group.is_open and group.pending and smallest > group.offered:
                group.disabled = True
                left += group.offered
                group.offered = 0
                break
        else:
            return


def serve_group(group: Group, start: int, left: int, total: Fraction) -> int:
    share = max(1, int(start * exact(group.job.weight) / total)) if total else 1
    given = min(share, left, group.demand - group.offered)
    if group.preoffer > 0 and group.preoffer >= given:
        group.preoffer -= given
        return 0
    group.preoffer = 0
    group.offered += given
    return given


def weight(groups: Iterable[Group]) -> Fraction:
    return sum((exact(g.job.weight) for g in groups if g.is_open), Fraction(0))


def exact(weight: float) -> Fraction:
    return Fraction(str(weight))


def round_robin(jobs: Sequence[Job], cluster: Cluster) -> Decision:
    """Section 4: round robin, with max_slots."""
    order = sorted(
        jobs, key=lambda job: (sum(h.slots for h in job.allocations), job.submitted_ms, job.group)
    )
    live = deepcopy(cluster)
    starts: list[Started] = []
    queues = [(job, list(job.pending)) for job in order]
    while queues:
        staying = []
        for job, queue in queues:
            if queue and cluster.fit(queue[0]) and has_room(job, starts, queue[0]):
                request = queue.pop(0)
                places = live.fit(request)
                live.change(places, -1)
                if places:
                    starts.append((request.allocation_id, places))
                staying.append((job, queue))
        queues = staying
    return Decision(starts)


def has_room(job: Job, starts: Iterable[Started], request: AllocationRequest) -> bool:
    if job.max_slots is None or request.slots == 0:
        return True
    own = {r.allocation_id: r.slots for r in job.pending}
    given = sum(own.get(name, 0) for name, _ in starts)
    return sum(h.slots for h in job.allocations) + given + request.slots <= job.max_slots


def apply_max_slots(decision: Decision, jobs: Sequence[Job]) -> Decision:
    """Preempt excess allocations of jobs above max_slots."""
    for job in jobs:
        staying = [
            h
            for h in job.allocations
            if h.slots and not h.leaving and h.allocation_id not in decision.victims
        ]
        while job.max_slots is not None and sum(h.slots for h in staying) > job.max_slots:
            goes = max((h for h in staying if h.preemptible), key=lambda h: h.start, default=None)
            if goes is None:
                break
            staying.remove(goes)
            decision.victims.append(goes.allocation_id)
    return decision


def priority(jobs: Sequence[Job], cluster: Cluster, preemption: bool) -> Decision:
    """Section 3: priorities. Slots of leaving allocations become free first."""
    decision = Decision()
    live = deepcopy(cluster)
    for with_slots in (False, True):
        one = PriorityPass(jobs, live, with_slots, preemption)
        one.run()
        decision.starts += one.starts
        decision.victims += one.victims
        for _, places in one.starts:
            live.change(places, -1)
    return decision


class PriorityPass:
    """A pass over the requests with slots, or without slots."""

    def __init__(
        self, jobs: Sequence[Job], cluster: Cluster, with_slots: bool, preemption: bool
    ) -> None:
        self.jobs, self.with_slots, self.preemption = jobs, with_slots, preemption
        self.local = deepcopy(cluster)
        self.starts: list[Started] = []
        self.reserved: list[Started] = []
        self.victims: list[str] = []
        self.gone: set[str] = set()

    def run(self) -> None:
        backfilling = False
        for level in sorted({job.priority for job in self.jobs}):
            queue = [
                (job.position, request.ticket, request, job)
                for job in self.jobs
                if job.priority == level
                for request in job.pending
                if (request.slots > 0) == self.with_slots
            ]
            unplaced: list[tuple[AllocationRequest, Job]] = []
            at_once = self.preemption and not self.gone
            for _, _, request, job in sorted(queue, key=lambda one: one[:2]):
                if not has_room(job, self.reserved, request):
                    continue
                if self.reserve(request):
                    may_start = not self.gone and (not backfilling or request.preemptible)
                    self.starts += self.reserved[-1:] if may_start else []
                    continue
                removed = self.removals_for(request, job) if at_once else []
                at_once = at_once and not removed
                if removed and not self.are_lower(removed, level):
                    self.preempt(request, removed)
                else:
                    unplaced.append((request, job))
            waiting = [r for r, _ in unplaced if self.local.could_ever(r)]
            backfilling = backfilling or bool(waiting)
            if backfilling and not self.preemption:
                return
            for request, job in unplaced if self.preemption else ():
                if has_room(job, self.reserved, request) and not self.reserve(request):
                    self.preempt(request, self.removals_for(request, job))

    def reserve(self, request: AllocationRequest) -> bool:
        places = self.local.fit(request)
        self.local.change(places, -1)
        if places:
            self.reserved.append((request.allocation_id, places))
        return bool(places)

    def removals_for(self, request: AllocationRequest, job: Job) -> list[RunningAllocation]:
        trial = deepcopy(self.local)
        removed: list[RunningAllocation] = []
        for holding in self.victims_for(job):
            trial.change(holding.placements, 1)
            removed.append(holding)
            if trial.fit(request):
                return removed
        return []

    def are_lower(self, removed: Iterable[RunningAllocation], level: int) -> bool:
        """Return whether all allocations would stay otherwise, and are less important."""
        priority_of = {job.group: job.priority for job in self.jobs}
        return all(not h.leaving and priority_of[h.group] > level for h in removed)

    def preempt(self, request: AllocationRequest, removed: Sequence[RunningAllocation]) -> None:
        if not removed:
            return
        for holding in removed:
            self.local.change(holding.placements, 1)
        self.gone |= {holding.allocation_id for holding in removed}
        self.victims += [holding.allocation_id for holding in removed if not holding.leaving]
        self.reserve(request)

    def victims_for(self, job: Job) -> list[RunningAllocation]:
        known = [
            (other, holding)
            for other in self.jobs
            for holding in other.allocations
            if (holding.slots > 0) == self.with_slots and holding.allocation_id not in self.gone
        ]
        leaving = [h for _, h in sorted(known, key=queue_order) if h.leaving]
        staying = [
            h
            for other, h in sorted(known, key=queue_order, reverse=True)
            if h.preemptible
            and not h.leaving
            and (other.priority, other.position) > (job.priority, job.position)
        ]
        return leaving + staying


def queue_order(one: tuple[Job, RunningAllocation]) -> tuple[int, Decimal, int, int, int]:
    job, holding = one
    return (job.priority, job.position, job.submitted_ms, job.group, holding.start)
