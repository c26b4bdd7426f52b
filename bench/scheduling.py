"""Schedulers without a pool: a plan for a long queue, and plans of a single decision."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from statistics import median

from bench.figures import Row, Scale, at_least, at_most, number, progress
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Job,
    Placement,
    RunningAllocation,
    SchedulerRules,
    job_with_totals,
)
from control_plane.scheduling.schedule import schedule_jobs

PASS_MS_MAX = 100.0
DECISIONS_MIN = 1_000.0
SLOTS = 8
SIZES = (1, 2, 4, 8)
# No commit of a pool starts as many. A whole plan is the worst case.
STARTS_MAX = 10**9
SCHEDULERS = {
    "fair_share": SchedulerRules("fair_share"),
    "priority": SchedulerRules("priority"),
    "priority with preemption": SchedulerRules("priority", preemption=True),
    "round_robin": SchedulerRules("round_robin"),
}


def scheduling(scale: Scale) -> Iterator[Row]:
    """Yield the slowest plan of each scheduler, then the rate of single decisions."""
    queued, agents = scale.queued_jobs, scale.scheduled_agents
    pools = {
        "all agents free": (_queue(queued, 1), _agents(agents, SLOTS)),
        f"{number(queued // 100)} requests of each of 100 jobs": (
            _queue(100, queued // 100),
            _agents(agents, SLOTS),
        ),
        "no slot free": (
            [*_running(agents, 42), *_queue(queued, 1)],
            _agents(agents, 0),
        ),
        "all slots held by less important jobs": (
            [*_running(agents, 99), *_queue(queued, 1)],
            _agents(agents, 0),
        ),
    }
    where = f"{queued:,} queued jobs on {agents:,} agents of {SLOTS} slots"
    for name, rules in SCHEDULERS.items():
        with progress(f"plans of {name}"):
            taken = {
                pool: _plan_ms(jobs, free, rules, scale.runs)
                for pool, (jobs, free) in pools.items()
            }
        beside = "; ".join(f"{pool}: {number(ms)} ms" for pool, ms in taken.items())
        what = f"scheduling pass, {where}, {name}"
        yield at_most(what, max(taken.values()), PASS_MS_MAX, "ms", beside=beside)
    with progress("decisions one by one"):
        rates = {
            name: _decisions(agents, rules, scale.decisions) for name, rules in SCHEDULERS.items()
        }
    beside = "; ".join(f"{name}: {number(rate)}" for name, rate in rates.items())
    yield at_least(
        "scheduling decisions, pure", min(rates.values()), DECISIONS_MIN, "/s", beside=beside
    )


def _agents(count: int, free: int) -> list[AgentCapacity]:
    return [AgentCapacity(f"i-{n:017x}", SLOTS, free) for n in range(count)]


def _queue(jobs: int, each: int) -> list[Job]:
    """Return jobs of all sizes, each in a separate group."""
    return [
        _job(1_000 + n, [SIZES[(n + k) % len(SIZES)] for k in range(each)]) for n in range(jobs)
    ]


def _job(
    group: int, sizes: Sequence[int], runs: Sequence[RunningAllocation] = (), priority: int = 42
) -> Job:
    pending = tuple(
        AllocationRequest(f"{group}{k:04d}.1", slots, f"{group:015d}.{group:015d}.{k:012d}", group)
        for k, slots in enumerate(sizes)
    )
    position = Decimal(group * 1000)
    return job_with_totals(
        Job(group, group, position=position, priority=priority, pending=pending, allocations=runs)
    )


def _running(agents: int, priority: int, each: int = 0) -> list[Job]:
    """Return ten jobs that hold all slots, each allocation with a single slot. `each`: further
    waiting requests per job.
    """
    names = [agent.agent for agent in _agents(agents, 0)] * SLOTS
    held = [
        RunningAllocation(f"{n}.1", 1, n % 10 + 1, n, placements=(Placement(name, 1),))
        for n, name in enumerate(names)
    ]
    return [_job(group, [1] * each, held[group - 1 :: 10], priority) for group in range(1, 11)]


def _plan_ms(
    jobs: Sequence[Job], agents: Sequence[AgentCapacity], rules: SchedulerRules, runs: int
) -> float:
    taken: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        schedule_jobs(jobs, agents, rules, STARTS_MAX)
        taken.append((time.perf_counter() - started) * 1000)
    return median(taken)


def _decisions(count: int, rules: SchedulerRules, decisions: int) -> float:
    """Return the plans per second in a full pool with a queue, each after a freed slot."""
    agents, jobs = _agents(count, 0), _running(count, 42, each=100)
    started = 0.0
    for n in range(decisions):
        group, at = n % 10, n % count
        job, agent = jobs[group], agents[at]
        left = tuple(one for one in job.allocations if one.placements[0].agent != agent.agent)
        gone = job.held_slots - len(left)
        agents[at] = replace(agent, free=gone)
        jobs[group] = replace(job, allocations=left, held_slots=len(left))
        before = time.perf_counter()
        plan = schedule_jobs(jobs, agents, rules, gone)
        started += time.perf_counter() - before
        assert len(plan.starts) == gone, (rules, len(plan.starts), gone)
        agents[at], jobs[group] = agent, job
    return decisions / started
