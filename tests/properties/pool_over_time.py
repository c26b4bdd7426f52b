"""A pool that is planned repeatedly while jobs come and go."""

import random
from collections import Counter
from decimal import Decimal
from typing import Any

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Job,
    RunningAllocation,
    SchedulePlan,
    SchedulerRules,
    job_with_totals,
)
from control_plane.scheduling.schedule import schedule_jobs


class PoolOverTime:
    """A pool that is planned repeatedly; allocations end only on request."""

    def __init__(self, agents: dict[str, int], rules: SchedulerRules) -> None:
        self.agents, self.rules = agents, rules
        self.running: dict[str, RunningAllocation] = {}
        self.preemptions = 0
        self.started = 0
        self._jobs: dict[int, Job] = {}
        self._pending: dict[int, list[AllocationRequest]] = {}
        self._asked = 0
        self.excluded: dict[str, tuple[str, ...]] = {}
        self.kinds: dict[str, int] = {}

    def add_job(self, group: int, slots: int, count: int, **settings: Any) -> None:
        """Add a job of `count` trials, submitted in the order of groups."""
        settings.setdefault("position", Decimal(group * 1000))
        self._jobs[group] = Job(group, group, **settings)
        self._pending[group] = []
        for _ in range(count):
            self._ask(group, slots)

    def make_plan(self) -> SchedulePlan:
        """Make and apply a plan; preempted allocations stay until `end_allocation`."""
        plan = self.plan()
        for start in plan.starts:
            request = start.request
            self.started += 1
            self._pending[request.group].remove(request)
            self.running[request.allocation_id] = RunningAllocation(
                request.allocation_id,
                request.slots,
                request.group,
                self.started,
                placements=start.placements,
            )
        for victim in plan.victims:
            one = victim.allocation
            self.preemptions += 1
            self.running[one.allocation_id] = RunningAllocation(
                one.allocation_id,
                one.slots,
                one.group,
                one.start,
                leaving=True,
                placements=one.placements,
            )
        return plan

    def plan(self) -> SchedulePlan:
        """Return a plan for the present state of the pool."""
        jobs, agents = self.snapshot()
        return schedule_jobs(jobs, agents, self.rules, 10**6)

    def remove_job(self, group: int) -> None:
        """Remove a job and free the job's slots."""
        for name in [name for name, one in self.running.items() if one.group == group]:
            del self.running[name]
        del self._jobs[group], self._pending[group]

    def complete_allocation(self, allocation_id: str) -> None:
        """Complete a trial; the last trial of a job removes the job."""
        group = self.running.pop(allocation_id).group
        if not self._pending[group] and not self.held_slots(group):
            self.remove_job(group)

    def end_allocation(self, allocation_id: str) -> None:
        """End an allocation; the trial waits again, for the same agents."""
        one = self.running.pop(allocation_id)
        self._ask(one.group, one.slots, self.excluded.get(allocation_id, ()))

    def fail_allocation(self, allocation_id: str) -> None:
        """End an allocation; the trial waits again, for agents that it has not used."""
        one = self.running.pop(allocation_id)
        used = tuple(place.agent for place in one.placements)
        self._ask(one.group, one.slots, (*self.excluded.get(allocation_id, ()), *used))

    def come_to_rest(self, chance: random.Random, plans_max: int = 100) -> bool:
        """Plan until the pool is stable, ending preempted allocations in random order.

        Return whether the pool became stable within `plans_max` plans.
        """
        for _ in range(plans_max):
            plan, leaving = self.make_plan(), self.leaving
            if not (plan.starts or plan.victims or leaving):
                return True
            for name in chance.sample(leaving, chance.randint(1, len(leaving))) if leaving else ():
                self.end_allocation(name)
        return False

    def waiting_that_fit(self) -> list[int]:
        """Return the jobs with a waiting trial that fits on the agents and within `max_slots`.

        Agents that the trial excludes do not count.
        """
        jobs, agents = self.snapshot()
        agent_set = AgentSet(agents, self.rules.fitting)
        return [
            job.group
            for job in jobs
            for request in job.pending
            if (job.max_slots is None or job.held_slots + request.slots <= job.max_slots)
            and agent_set.find_placements(request)
        ]

    @property
    def leaving(self) -> list[str]:
        return [name for name, one in self.running.items() if one.leaving]

    def refused_agents(self, group: int) -> set[str]:
        """Return the agents that the job must not use."""
        refused = self._jobs[group].refused_kinds
        return {name for name in self.agents if self.kinds.get(name, 0) in refused}

    def held_slots(self, group: int) -> int:
        return sum(one.slots for one in self.running.values() if one.group == group)

    def snapshot(self) -> tuple[list[Job], list[AgentCapacity]]:
        """Return the jobs and agents for a plan."""
        used = Counter[str]()
        for one in self.running.values():
            for place in one.placements:
                used[place.agent] += place.slots
        agents = [
            AgentCapacity(name, total, total - used[name], kind=self.kinds.get(name, 0))
            for name, total in self.agents.items()
        ]
        return [self._job_now(group) for group in self._jobs], agents

    def _job_now(self, group: int) -> Job:
        job = self._jobs[group]
        return job_with_totals(
            Job(
                group,
                job.submitted_ms,
                job.weight,
                job.priority,
                job.position,
                job.max_slots,
                pending=self._pending[group],
                allocations=[one for one in self.running.values() if one.group == group],
                refused_kinds=job.refused_kinds,
            )
        )

    def _ask(self, group: int, slots: int, excluded: tuple[str, ...] = ()) -> None:
        self._asked += 1
        name, ticket = f"{group}.{self._asked}", f"{group:06d}.{self._asked:06d}"
        self.excluded[name] = excluded
        self._pending[group].append(
            AllocationRequest(
                name,
                slots,
                ticket,
                group,
                excluded_agents=excluded,
                refused_kinds=self._jobs[group].refused_kinds,
            )
        )
