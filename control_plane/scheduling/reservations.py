"""Reservations: the choice of a job that has waited too long, and of the agents to hold for the
job.

A job without slots may wait forever for several slots on one agent, or for whole agents, while
smaller requests use every slot that becomes free. With fair share or round robin, a job of one slot
may also wait forever, because younger jobs or jobs with fewer trials may come first. So after a
certain wait, a pool holds agents for the oldest such job, one job at a time. held_slots.py plans
with a reservation.

The priority scheduler with preemption makes room at once and needs no reservations. Without
preemption, no job of equal or lower priority overtakes a request for one slot.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from control_plane.scheduling.model import AgentCapacity, Job, RequestSize, SchedulerRules
from control_plane.scheduling.sizes import gang_shape


@dataclass(frozen=True, slots=True)
class Reservation:
    """Agents held for a request: a part of a single agent, or several whole agents."""

    group: int
    """The experiment id of the request's job."""
    slots: int
    """The slots of the request."""
    agents: tuple[str, ...]
    """The names of the held agents."""
    started: int = 0
    """The number of the pool's last start before the reservation. Later starts in held slots are
    borrowers.
    """

    def wanted_slots(self, agent: AgentCapacity) -> int:
        """Return the slots that the request needs of a held agent.

        The request needs all of its slots on a single agent, or all slots of each agent of a gang.
        """
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
    """Choose the pool's next reservation. Nothing is changed.

    Return None without `after_ms`, in a priority pool with preemption, or if no due job fits. A due
    job holds no slots, has waited `after_ms` and has a pending request within `max_slots`. In a
    priority pool, only requests for several slots count.

    Return `current` itself if its job is still due and its agents can run the request. A priority
    pool drops `current` once a more important job is due.

    Otherwise prefer requests of the other kind (one slot or several) than the last reservation.
    Among requests of a kind, the longest wait comes first, in a priority pool the priority. The
    chosen agents lack the fewest free slots for the request.

    Args:
        current: the reservation so far, None without one.
        after_ms: the wait after which a job is due. None: no reservations.
        now_ms: the present time in epoch ms.
        started: the number of the pool's last start, stored in the new reservation.
        last_slots: the slots of the pool's last reservation, 0 without one. 0 counts as one slot.
    """
    by_priority = rules.kind == "priority"
    if after_ms is None or (by_priority and rules.preemption):
        return None
    due = _jobs_due(jobs, rules, now_ms - after_ms)
    if not due:
        return None
    if current is not None:
        best_priority = min(job.priority for job in due) if by_priority else 0
        holder = next((job for job in due if job.group == current.group), None)
        is_first = holder is not None and (not by_priority or holder.priority == best_priority)
        if holder is not None and is_first and _can_keep(current, holder, agents, rules):
            return current
    requests = [(job, slots) for job in due for slots in sorted(_reservable_sizes(job, rules))]
    requests.sort(key=lambda request: (request[1] > 1) == (last_slots > 1))
    impossible: set[tuple[str, RequestSize]] = set()
    for job, slots in requests:
        size = (job.label, job.size_of(slots))
        names = () if size in impossible else _choose_agents(job, slots, agents, rules)
        if names:
            return Reservation(job.group, slots, names, started)
        if not job.excluding:
            impossible.add(size)
    return None


class OverdueSize(NamedTuple):
    """The size of a request that has waited too long."""

    slots: int
    """The slots of the request, at least 2."""
    single_agent: bool = False
    """Whether all slots must be on one agent."""


def overdue_sizes(
    jobs: Iterable[Job], rules: SchedulerRules, since_ms: int
) -> tuple[OverdueSize, ...]:
    """Return the sizes of overdue requests for several slots, in the order of reservations.

    Only jobs that hold no slots and have waited since `since_ms` (epoch ms) or longer count. Sizes
    beyond a job's `max_slots` are left out. Each size is returned once. Return () if no request is
    overdue.
    """
    sizes = (
        OverdueSize(slots, job.single_agent)
        for job in _jobs_due(jobs, rules, since_ms)
        for slots in sorted(_reservable_sizes(job, rules))
        if slots > 1
    )
    return tuple(dict.fromkeys(sizes))


def keep_allocations(jobs: Iterable[Job], kept: Mapping[str, int]) -> Iterator[Job]:
    """Yield the jobs with certain allocations marked as not preemptible. Other jobs stay unchanged.

    Args:
        kept: the job (experiment id) of each allocation to mark, by allocation id.
    """
    groups = {*kept.values()}
    for job in jobs:
        yield _job_with_kept(job, kept) if job.group in groups else job


def _job_with_kept(job: Job, kept: Container[str]) -> Job:
    """Return the job with the `kept` allocations marked as not preemptible, and the total
    changed.
    """
    allocations = tuple(
        replace(running, preemptible=False) if running.allocation_id in kept else running
        for running in job.allocations
    )
    fixed = sum(running.slots for running in allocations if not running.preemptible)
    return replace(job, allocations=allocations, non_preemptible_slots=fixed)


def _jobs_due(jobs: Iterable[Job], rules: SchedulerRules, since_ms: int) -> list[Job]:
    """Return the jobs that have waited since `since_ms` or longer, the longest wait first.

    Only jobs with a size that can be reserved count. In a priority pool, more important jobs come
    first.

    Args:
        since_ms: a time in epoch ms.
    """
    by_priority = rules.kind == "priority"
    due = [
        (job.priority if by_priority else 0, job.waits_since_ms, job.group, job)
        for job in jobs
        if job.waits_since_ms is not None
        and job.waits_since_ms <= since_ms
        and _reservable_sizes(job, rules)
    ]
    return [job for *_, job in sorted(due, key=lambda entry: entry[:3])]


def _reservable_sizes(job: Job, rules: SchedulerRules) -> list[int]:
    """Return the pending sizes for which the pool may hold slots. Empty if the job holds slots.

    Size 0 and sizes above `max_slots` are excluded. In a priority pool, size 1 is excluded as well.
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
    """Return whether the held agents can still run the reserved request of the job.

    Return False if the request no longer waits, if a held agent is gone, draining or excluded by
    the request, or if the agents together have the wrong sizes.
    """
    if current.slots not in _reservable_sizes(job, rules):
        return False
    names = {*current.agents}
    usable = names - _excluded_agents(job, current.slots)
    held = [agent for agent in agents if agent.agent in usable and _can_take(job, agent)]
    if len(held) < len(names):
        return False
    if len(held) == 1:
        return current.slots <= held[0].total
    shape = gang_shape(current.slots, Counter(agent.total for agent in held), rules.heterogeneous)
    return not job.single_agent and sum(count for _, count in shape) == len(held)


def _choose_agents(
    job: Job, slots: int, agents: Iterable[AgentCapacity], rules: SchedulerRules
) -> tuple[str, ...]:
    """Return the names of the agents that lack the fewest free slots for a request of the job.

    Only agents that `_can_take` the job count, in use or not, since slots become free. Agents that
    the job's first request of the size excludes do not count. Prefer one agent. Otherwise choose
    the whole agents of a gang, unless the job needs one agent. Return () if no agents can ever run
    the request.
    """
    excluded = _excluded_agents(job, slots)
    able = [agent for agent in agents if agent.agent not in excluded and _can_take(job, agent)]
    large = [agent for agent in able if slots <= agent.total]
    if large:
        best = min(large, key=lambda agent: (max(0, slots - agent.free), agent.total, agent.agent))
        return (best.agent,)
    if job.single_agent:
        return ()
    able.sort(key=lambda agent: (agent.total - agent.free, agent.agent))
    shape = gang_shape(slots, Counter(agent.total for agent in able), rules.heterogeneous)
    return tuple(
        agent.agent
        for size, count in shape
        for agent in [candidate for candidate in able if candidate.total == size][:count]
    )


def _excluded_agents(job: Job, slots: int) -> frozenset[str]:
    """Return the agents that the job's first request of a size excludes.

    A reservation is for this request (held_slots.py). Read no request if no request of the job
    excludes agents.
    """
    requests = job.pending if job.excluding else ()
    first = next((request for request in requests if request.slots == slots), None)
    return frozenset(first.excluded_agents if first else ())


def _can_take(job: Job, agent: AgentCapacity) -> bool:
    """Return whether the agent has the job's label, meets the job's needs and is not draining."""
    is_able = agent.label == job.label and agent.kind not in job.refused_kinds
    return is_able and not agent.draining
