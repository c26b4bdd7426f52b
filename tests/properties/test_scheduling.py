"""Schedulers on random clusters, compared with plainly written rules and with invariants."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Job,
    Placement,
    RunningAllocation,
    SchedulePlan,
    SchedulerRules,
    job_with_totals,
)
from control_plane.scheduling.schedule import plan_waits, schedule_jobs, wait_reasons
from tests.properties.scheduling_oracle import Decision, expected_decision

LABELS = ("", "", "x")
UNLIMITED = 10**9

rules = st.builds(
    SchedulerRules,
    st.sampled_from(["fair_share", "priority", "round_robin"]),
    st.booleans(),
    st.sampled_from(["best", "worst"]),
    st.booleans(),
)


@dataclass(frozen=True)
class Pool:
    """Jobs and agents."""

    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]

    @property
    def pending(self) -> dict[str, AllocationRequest]:
        return {request.allocation_id: request for job in self.jobs for request in job.pending}

    @property
    def holdings(self) -> dict[str, RunningAllocation]:
        return {holding.allocation_id: holding for job in self.jobs for holding in job.allocations}

    def job_of(self, group: int) -> Job:
        return next(job for job in self.jobs if job.group == group)


def random_pool(chance: random.Random) -> Pool:
    """Return a pool with slots in use, as assigned by a scheduler."""
    sizes = chance.choice([(8,), (4,), (4, 8), (0, 1, 2, 4, 8), (2, 3, 5)])
    labels = chance.choice([("",), LABELS])
    busy = chance.choice([0, 1, 4])
    names = [f"agent-{n}" for n in range(chance.randint(0, 6))]
    total = {name: chance.choice(sizes) for name in names}
    label = {name: chance.choice(labels) for name in names}
    drains = {name for name in names if chance.random() < 0.1}
    free = dict(total)
    aux = {name: chance.randint(0, 2) for name in names}
    aux_free = dict(aux)
    jobs = []
    for group in range(1, chance.randint(1, 7)):
        own = chance.choice(labels)
        mine = [name for name in names if label[name] == own]
        jobs.append(random_job(chance, group, own, mine, busy, total, free, aux_free))
    agents = [
        AgentCapacity(
            name,
            total[name] - free[name] if name in drains else total[name],
            0 if name in drains else free[name],
            label[name],
            aux[name],
            0 if name in drains else aux_free[name],
            name in drains,
        )
        for name in names
    ]
    return Pool(tuple(jobs), tuple(agents))


def random_job(
    chance: random.Random,
    group: int,
    label: str,
    agents: Sequence[str],
    busy: int,
    total: dict[str, int],
    free: dict[str, int],
    aux_free: dict[str, int],
) -> Job:
    single = chance.random() < 0.2
    submitted_ms = chance.randint(1, 4)
    holdings = []
    for number in range(chance.randint(0, busy)):
        places = draw_holdings(chance, agents, total, free, aux_free)
        if places:
            slots = sum(place.slots for place in places)
            keeps, leaves = chance.random() < 0.2, chance.random() < 0.15
            name, start = f"{group}{number}.1", chance.randint(1, 10**6)
            holdings.append(RunningAllocation(name, slots, group, start, not keeps, leaves, places))
    pending = [
        AllocationRequest(
            f"{group}{number}.2",
            chance.choice((0, 1, 1, 2, 3, 4, 8, 12, 16)),
            f"{submitted_ms:03d}.{number:03d}.{group:03d}",
            group,
            label,
            single,
            chance.random() < 0.8,
        )
        for number in range(chance.choice([0, 1, 2, 5]))
    ]
    return job_with_totals(
        Job(
            group,
            submitted_ms,
            chance.choice([1.0, 1.0, 0.1, 0.3, 10.0, 0.0]),
            chance.choice([1, 42, 42, 50]),
            Decimal(chance.choice([0, submitted_ms * 1000, submitted_ms * 1000, 2500])),
            chance.choice([None, None, 0, 2, 8]),
            label,
            single,
            pending,
            holdings,
        )
    )


def draw_holdings(
    chance: random.Random,
    agents: Sequence[str],
    total: dict[str, int],
    free: dict[str, int],
    aux_free: dict[str, int],
) -> tuple[Placement, ...]:
    """Return places in use: of an agent, of two whole agents, or without slots."""
    kind = chance.random()
    if kind < 0.15:
        open_ = [name for name in agents if aux_free[name]]
        places = [Placement(name, 0) for name in open_[:1]]
    elif kind < 0.3:
        unused = [name for name in agents if free[name] == total[name] > 0]
        places = [Placement(name, total[name]) for name in unused[:2]]
    else:
        some = [name for name in agents if free[name]]
        name = chance.choice(some) if some else ""
        places = [Placement(name, chance.randint(1, free[name]))] if some else []
    for place in places:
        free[place.agent] -= place.slots
        aux_free[place.agent] -= place.slots == 0
    return tuple(places)


pools = st.integers(0, 2**64).map(lambda seed: random_pool(random.Random(seed)))


def flat(plan: SchedulePlan) -> Decision:
    starts = [(start.request.allocation_id, start.placements) for start in plan.starts]
    return Decision(starts, [victim.allocation.allocation_id for victim in plan.victims])


@settings(max_examples=1000)
@given(pools, rules)
def test_plan_follows_the_rules(pool: Pool, rules: SchedulerRules) -> None:
    plan = flat(schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED))
    expected = expected_decision(pool.jobs, pool.agents, rules)
    assert plan.starts == expected.starts
    assert sorted(plan.victims) == sorted(expected.victims)


@given(pools, rules, st.integers(0, 5))
def test_scheduler_assigns_slots_once(pool: Pool, rules: SchedulerRules, starts_max: int) -> None:
    plan = schedule_jobs(pool.jobs, pool.agents, rules, starts_max)
    assert len(plan.starts) <= starts_max
    given: Counter[str] = Counter()
    beside: Counter[str] = Counter()
    for start in plan.starts:
        for place in start.placements:
            given[place.agent] += place.slots
            beside[place.agent] += place.slots == 0
    for agent in pool.agents:
        assert given[agent.agent] <= agent.free
        assert beside[agent.agent] <= agent.aux_free


@given(pools, rules)
def test_gang_gets_whole_unused_agents_or_none(pool: Pool, rules: SchedulerRules) -> None:
    plan = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED)
    agents = {agent.agent: agent for agent in pool.agents}
    names = [start.request.allocation_id for start in plan.starts]
    assert len(set(names)) == len(names)
    for start in plan.starts:
        request = start.request
        assert request == pool.pending[request.allocation_id]
        assert sum(place.slots for place in start.placements) == request.slots
        assert len({place.agent for place in start.placements}) == len(start.placements)
        assert all(agents[place.agent].label == request.label for place in start.placements)
        if len(start.placements) > 1:
            assert not request.single_agent
            for place in start.placements:
                agent = agents[place.agent]
                assert place.slots == agent.total == agent.free
            sizes = {place.slots for place in start.placements}
            assert len(sizes) == 1 or rules.heterogeneous


@given(pools, rules)
def test_job_gets_at_most_max_slots(pool: Pool, rules: SchedulerRules) -> None:
    plan = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED)
    for job in pool.jobs:
        given = sum(s.request.slots for s in plan.starts if s.request.group == job.group)
        if given and job.max_slots is not None:
            assert job.held_slots + given <= job.max_slots


@given(pools, rules, st.randoms(use_true_random=False))
def test_plan_does_not_depend_on_the_order_of_inputs(
    pool: Pool, rules: SchedulerRules, chance: random.Random
) -> None:
    jobs, agents = list(pool.jobs), list(pool.agents)
    chance.shuffle(jobs)
    chance.shuffle(agents)
    for n, job in enumerate(jobs):
        holdings = list(job.allocations)
        chance.shuffle(holdings)
        jobs[n] = replace(job, allocations=holdings)
    one = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED)
    other = schedule_jobs(jobs, agents, rules, UNLIMITED)
    assert one.starts == other.starts
    assert {v.allocation.allocation_id for v in one.victims} == {
        v.allocation.allocation_id for v in other.victims
    }
    assert one.wait_reason == other.wait_reason


@given(pools, rules)
def test_only_preemptible_allocations_are_preempted(pool: Pool, rules: SchedulerRules) -> None:
    plan = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED)
    names = [victim.allocation.allocation_id for victim in plan.victims]
    assert len(set(names)) == len(names)
    asking = [(job.priority, job.position) for job in pool.jobs if job.pending]
    for victim in plan.victims:
        holding = pool.holdings[victim.allocation.allocation_id]
        job = pool.job_of(holding.group)
        assert holding.preemptible
        assert not holding.leaving
        assert victim.reason
        over = job.max_slots is not None and job.held_slots > job.max_slots
        if rules.kind == "round_robin" or (rules.kind == "priority" and not rules.preemption):
            assert over
        elif rules.kind == "priority":
            assert over or min(asking) < (job.priority, job.position)


@given(pools, rules)
def test_limited_plan_has_the_first_starts_of_the_whole_plan(
    pool: Pool, rules: SchedulerRules
) -> None:
    whole = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED).starts
    for starts_max in range(len(whole) + 1):
        assert schedule_jobs(pool.jobs, pool.agents, rules, starts_max).starts == whole[:starts_max]


@given(pools, rules)
def test_every_waiting_job_has_a_reason(pool: Pool, rules: SchedulerRules) -> None:
    plan = schedule_jobs(pool.jobs, pool.agents, rules, UNLIMITED)
    started = Counter(start.request.group for start in plan.starts)
    waiting = {
        job.group for job in pool.jobs if sum(job.pending_slots.values()) > started[job.group]
    }
    reasons = wait_reasons(pool.jobs, pool.agents, rules)
    assert reasons.keys() == waiting
    assert all(reasons.values())
    assert bool(plan.wait_reason) == bool(waiting)


@given(pools, rules, st.randoms(use_true_random=False))
def test_reasons_of_some_jobs_equal_the_reasons_among_all(
    pool: Pool, rules: SchedulerRules, chance: random.Random
) -> None:
    groups = [job.group for job in pool.jobs]
    some = {*chance.sample(groups, chance.randint(0, len(groups)))}
    whole = wait_reasons(pool.jobs, pool.agents, rules)
    planned = plan_waits(pool.jobs, pool.agents, rules)
    assert planned.reasons(some) == {group: whole[group] for group in some & whole.keys()}
    assert planned.reasons() == whole
