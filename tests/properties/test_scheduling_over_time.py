"""Schedulers over many plans: those who are asked to leave do, in any order, and wait again."""

import random
from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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
from control_plane.scheduling.shares import ShareClaim, offer_shares

PREEMPTION = SchedulerRules("priority", preemption=True)
FAIR_SHARE = SchedulerRules("fair_share")
ROUND_ROBIN = SchedulerRules("round_robin")


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

    def come_to_rest(self, chance: random.Random, plans_max: int = 100) -> bool:
        """Plan until nothing moves, while those who are asked to leave do so in any order."""
        for _ in range(plans_max):
            plan, leaving = self.make_plan(), self.leaving
            if not (plan.starts or plan.victims or leaving):
                return True
            for name in chance.sample(leaving, chance.randint(1, len(leaving))) if leaving else ():
                self.end_allocation(name)
        return False

    def waiting_that_fit(self) -> list[int]:
        """The jobs of which a trial waits that agents have room for, and that it may have."""
        jobs, agents = self.snapshot()
        agent_set = AgentSet(agents, self.rules.fitting)
        return [
            job.group
            for job in jobs
            for slots in job.pending_slots
            if (job.max_slots is None or job.held_slots + slots <= job.max_slots)
            and agent_set.can_fit_now(slots, job.single_agent)
        ]

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


def random_pool(chance: random.Random, rules: SchedulerRules) -> PoolOverTime:
    """Jobs fill the agents, and others come."""
    size = chance.choice([4, 8])
    agents = {f"a{n}": size for n in range(chance.randint(1, 5))}
    if chance.random() < 0.3:
        agents |= {"b": 2, "c": chance.choice([2, 4, 8])}
    pool, total = PoolOverTime(agents, rules), sum(agents.values())
    groups = list(range(1, 8))
    chance.shuffle(groups)
    first = chance.randint(1, 3)
    for number, group in enumerate(groups[: first + chance.randint(1, 4)]):
        if number == first:
            pool.come_to_rest(chance)
        slots = chance.choice([1, 1, 2, 3, 4, 8, 8, 16])
        pool.add_job(
            group,
            slots,
            chance.choice([1, 2, 4, total // slots + 1, total]),
            weight=chance.choice([1.0, 1.0, 2.0, 0.5, 3.0]),
            priority=chance.choice([42, 42, 10, 99]),
            max_slots=chance.choice([None, None, None, max(slots, total // 2)]),
        )
    return pool


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([FAIR_SHARE, PREEMPTION, ROUND_ROBIN, SchedulerRules("priority")]),
)
def test_a_pool_comes_to_rest_and_nothing_moves_then(
    chance: random.Random, rules: SchedulerRules
) -> None:
    pool = random_pool(chance, rules)
    pool.preemptions = 0
    assert pool.come_to_rest(chance)
    # Each slot is given up a few times at most for those who came.
    assert pool.preemptions <= 3 * sum(pool.agents.values())
    rests = pool.make_plan()
    assert not rests.starts
    assert not rests.victims


def test_shares_that_change_with_who_waits_keep_nobody_coming_and_going() -> None:
    """Four trials would go for one of 8 slots, whose job then has no share that it could use."""
    chance = random.Random(33852)
    assert random_pool(chance, FAIR_SHARE).come_to_rest(chance)


@given(st.randoms(use_true_random=False))
def test_at_rest_a_fair_share_leaves_no_slots_idle_that_fit(chance: random.Random) -> None:
    pool = random_pool(chance, FAIR_SHARE)
    assert pool.come_to_rest(chance)
    assert not pool.waiting_that_fit()


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_trials_of_one_slot_are_shared_by_weight(chance: random.Random, total: int) -> None:
    pool = PoolOverTime({"a": total}, FAIR_SHARE)
    weights = [chance.choice([1.0, 2.0, 0.5, 3.0]) for _ in range(chance.randint(1, 5))]
    for group, weight in enumerate(weights, 1):
        pool.add_job(group, 1, total, weight=weight)
        pool.make_plan()
    assert pool.come_to_rest(chance)
    claims = [ShareClaim(n, (n, n), total, weight) for n, weight in enumerate(weights, 1)]
    offer_shares(claims, total)
    assert [pool.held_slots(one.group) for one in claims] == [one.offered for one in claims]
