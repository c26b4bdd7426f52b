"""Reservations: the choice of the job that has waited too long, and of the agents held for it.

A job that holds nothing and waits for several slots on one agent, or for whole agents, may wait for
ever while each slot that becomes free goes to a smaller request; in a fair share or a round robin
with too few slots, where younger jobs or those with fewer trials may come first, a job of one slot
may too. After a wait certain agents are held for the oldest such job, one of a pool at a time;
held_slots.py says how. With preemption the priority scheduler makes room for a job at once, so that
nothing is held; without, nothing of its priority passes a trial of one slot.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from control_plane.scheduling.model import AgentCapacity, Job, SchedulerRules
from control_plane.scheduling.sizes import gang_shape


@dataclass(frozen=True, slots=True)
class Reservation:
    """Agents held for a trial of `slots` slots of the job `group`: a part of one agent, or all of
    several. `started`: the number of the pool's last start before it.
    """

    group: int
    slots: int
    agents: tuple[str, ...]
    started: int = 0

    def wanted_slots(self, agent: AgentCapacity) -> int:
        """The slots that the trial takes of one of the agents."""
        return self.slots if len(self.agents) == 1 else agent.total


def renew_reservation(
    jobs: Iterable[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    current: Reservation | None,
    *,
    after_ms: int | None,
    now_ms: int,
    started: int,
    last_slots: int = 0,
) -> Reservation | None:
    """The pool's reservation from now on: the `current` one while its job waits and its agents can
    hold it, else one for the job that has waited longest of those that are due and fit; None if
    none is. Where priorities decide, the most important of them is first. Jobs of one slot and of
    several take turns, so that neither wait for all of the others.

    `after_ms`: the wait after which a job is due, None if none ever is; `started`: the number of
    the pool's last start; `last_slots`: the slots of its last reservation, 0 if it had none.
    """
    by_priority = rules.kind == "priority"
    if after_ms is None or (by_priority and rules.preemption):
        return None
    due = _jobs_due(jobs, rules, now_ms - after_ms)
    if not due:
        return None
    if current is not None:
        first = min(job.priority for job in due) if by_priority else 0
        holder = next((job for job in due if job.group == current.group), None)
        is_first = holder is not None and (not by_priority or holder.priority == first)
        if holder is not None and is_first and _can_keep(current, holder, agents, rules):
            return current
    requests = [(job, slots) for job in due for slots in sorted(_reservable_sizes(job, rules))]
    requests.sort(key=lambda request: (request[1] > 1) == (last_slots > 1))
    impossible: set[tuple[int, str, bool]] = set()
    for job, slots in requests:
        size = (slots, job.label, job.single_agent)
        names = () if size in impossible else _choose_agents(job, slots, agents, rules)
        if names:
            return Reservation(job.group, slots, names, started)
        impossible.add(size)
    return None


class OverdueSize(NamedTuple):
    """The slots of a request that has waited too long; `single_agent`: all on one agent."""

    slots: int
    single_agent: bool = False


def overdue_sizes(
    jobs: Iterable[Job], rules: SchedulerRules, since_ms: int
) -> tuple[OverdueSize, ...]:
    """The sizes of the requests for several slots, of jobs that hold nothing and have waited since
    then at least, in the order in which the pool holds agents for them.
    """
    sizes = (
        OverdueSize(slots, job.single_agent)
        for job in _jobs_due(jobs, rules, since_ms)
        for slots in sorted(_reservable_sizes(job, rules))
        if slots > 1
    )
    return tuple(dict.fromkeys(sizes))


def keep_allocations(jobs: Iterable[Job], kept: Mapping[str, int]) -> Iterator[Job]:
    """The jobs, those of them that nobody may preempt now marked so; `kept` gives the job of each
    allocation that is to stay.
    """
    groups = {*kept.values()}
    for job in jobs:
        yield _job_with_kept(job, kept) if job.group in groups else job


def _job_with_kept(job: Job, kept: Container[str]) -> Job:
    allocations = tuple(
        replace(one, preemptible=False) if one.allocation_id in kept else one
        for one in job.allocations
    )
    fixed = sum(one.slots for one in allocations if not one.preemptible)
    return replace(job, allocations=allocations, non_preemptible_slots=fixed)


def _jobs_due(jobs: Iterable[Job], rules: SchedulerRules, since_ms: int) -> list[Job]:
    """The jobs that have waited since then at least, those first that come first."""
    by_priority = rules.kind == "priority"
    due = [
        (job.priority if by_priority else 0, job.waits_since_ms, job.group, job)
        for job in jobs
        if job.waits_since_ms is not None
        and job.waits_since_ms <= since_ms
        and _reservable_sizes(job, rules)
    ]
    return [job for *_, job in sorted(due, key=lambda one: one[:3])]


def _reservable_sizes(job: Job, rules: SchedulerRules) -> list[int]:
    """The sizes that slots may be held for, by a job that has none: any, but where priorities
    decide only several slots.
    """
    if job.held_slots:
        return []
    least = 2 if rules.kind == "priority" else 1
    return [
        slots
        for slots in job.pending_slots
        if slots >= least and (job.max_slots is None or slots <= job.max_slots)
    ]


def _can_keep(
    current: Reservation, job: Job, agents: Iterable[AgentCapacity], rules: SchedulerRules
) -> bool:
    """Whether the agents of a reservation can still hold what it is for."""
    if current.slots not in _reservable_sizes(job, rules):
        return False
    names = {*current.agents}
    held = [agent for agent in agents if agent.agent in names and _can_take(job, agent)]
    if len(held) < len(names):
        return False
    if len(held) == 1:
        return current.slots <= held[0].total
    shape = gang_shape(current.slots, Counter(agent.total for agent in held), rules.heterogeneous)
    return not job.single_agent and sum(count for _, count in shape) == len(held)


def _choose_agents(
    job: Job, slots: int, agents: Iterable[AgentCapacity], rules: SchedulerRules
) -> tuple[str, ...]:
    """Choose the agents that lack the fewest slots; () if none can ever hold the trial."""
    able = [agent for agent in agents if _can_take(job, agent)]
    large = [agent for agent in able if slots <= agent.total]
    if large:
        nearest = min(large, key=lambda one: (max(0, slots - one.free), one.total, one.agent))
        return (nearest.agent,)
    if job.single_agent:
        return ()
    able.sort(key=lambda one: (one.total - one.free, one.agent))
    shape = gang_shape(slots, Counter(agent.total for agent in able), rules.heterogeneous)
    return tuple(
        agent.agent
        for size, count in shape
        for agent in [one for one in able if one.total == size][:count]
    )


def _can_take(job: Job, agent: AgentCapacity) -> bool:
    return agent.label == job.label and not agent.draining
