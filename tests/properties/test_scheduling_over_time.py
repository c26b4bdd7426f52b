"""Schedulers over many plans: those who are asked to leave do, in any order, and wait again."""

import random
from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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

PREEMPTION = SchedulerRules("priority", preemption=True)


class PoolOverTime:
    """A pool that is planned again and again. Nobody ends unless asked to leave."""

    def __init__(self, agents: dict[str, int], rules: SchedulerRules) -> None:
        self.agents, self.rules = agents, rules
        self.running: dict[str, RunningAllocation] = {}
        self.preemptions = 0
        self._jobs: dict[int, Job] = {}
        self._pending: dict[int, list[AllocationRequest]] = {}
        self._asked = self._started = 0

    def add_job(self, group: int, slots: int, count: int, **settings: Any) -> None:
        """A job of so many trials, submitted in the order of groups."""
        settings.setdefault("position", Decimal(group * 1000))
        self._jobs[group] = Job(group, group, **settings)
        self._pending[group] = []
        for _ in range(count):
            self._ask(group, slots)

    def make_plan(self) -> SchedulePlan:
        """Make a plan and do what it says; who is asked to leave stays until `end_allocation`."""
        jobs, agents = self.snapshot()
        plan = schedule_jobs(jobs, agents, self.rules, 10**6)
        for start in plan.starts:
            request = start.request
            self._started += 1
            self._pending[request.group].remove(request)
            self.running[request.allocation_id] = RunningAllocation(
                request.allocation_id,
                request.slots,
                request.group,
                self._started,
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

    def end_allocation(self, allocation_id: str) -> None:
        """An allocation leaves, and its trial waits again."""
        one = self.running.pop(allocation_id)
        self._ask(one.group, one.slots)

    @property
    def leaving(self) -> list[str]:
        return [name for name, one in self.running.items() if one.leaving]

    def held_slots(self, group: int) -> int:
        return sum(one.slots for one in self.running.values() if one.group == group)

    def snapshot(self) -> tuple[list[Job], list[AgentCapacity]]:
        """The jobs and agents that a plan is made from."""
        used = Counter[str]()
        for one in self.running.values():
            for place in one.placements:
                used[place.agent] += place.slots
        agents = [
            AgentCapacity(name, total, total - used[name]) for name, total in self.agents.items()
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
            )
        )

    def _ask(self, group: int, slots: int) -> None:
        self._asked += 1
        name, ticket = f"{group}.{self._asked}", f"{group:06d}.{self._asked:06d}"
        self._pending[group].append(AllocationRequest(name, slots, ticket, group))


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([41, 42]),
)
def test_a_job_that_was_moved_ahead_has_its_slots_once_those_behind_it_left(
    chance: random.Random, agents: int, size: int, priority: int
) -> None:
    pool = PoolOverTime({f"a{n}": size for n in range(agents)}, PREEMPTION)
    total = agents * size
    for group in range(10, 10 + chance.randint(1, 3)):
        pool.add_job(group, chance.choice([1, 1, 2]), 2 * total)
    pool.make_plan()
    wanted = size * chance.randint(1, agents)
    pool.add_job(1, wanted, 1, priority=priority)
    departures = 0
    while not pool.held_slots(1):
        pool.make_plan()
        for name in chance.sample(pool.leaving, min(len(pool.leaving), chance.randint(1, 3))):
            pool.end_allocation(name)
            departures += 1
        assert departures <= total
        assert pool.preemptions <= total
        assert pool.leaving or departures
        pool.make_plan()
