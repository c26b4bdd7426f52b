"""Jobs and agents for tests of schedulers."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

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
from control_plane.scheduling.schedule import schedule_jobs

FAIR_SHARE = SchedulerRules("fair_share")
PRIORITY = SchedulerRules("priority")
PREEMPTION = SchedulerRules("priority", preemption=True)
ROUND_ROBIN = SchedulerRules("round_robin")


def agent(name: str, total: int, free: int | None = None, **settings: Any) -> AgentCapacity:
    """Return an agent. All slots are free by default."""
    return AgentCapacity(name, total, total if free is None else free, **settings)


def job(
    group: int,
    *slots: int,
    runs: Sequence[RunningAllocation] = (),
    submitted_ms: int = 0,
    **settings: Any,
) -> Job:
    """Return a job with a pending request per number in `slots`.

    Jobs are submitted in the order of groups. Requests are named by group and letter: the second
    request of job 3 is "3b".
    """
    submitted_ms = submitted_ms or group
    single_agent, label = settings.get("single_agent", False), settings.get("label", "")
    pending = [
        AllocationRequest(
            f"{group}{chr(ord('a') + n)}",
            count,
            f"{submitted_ms:03d}.{n:03d}.{group:03d}",
            group,
            label,
            single_agent,
        )
        for n, count in enumerate(slots)
    ]
    settings.setdefault("position", Decimal(submitted_ms * 1000))
    held = [replace(one, group=group) for one in runs]
    return job_with_totals(Job(group, submitted_ms, pending=pending, allocations=held, **settings))


def running_allocation(
    name: str, start: int, *places: tuple[str, int], **settings: Any
) -> RunningAllocation:
    """Return an allocation with these slots, as (agent, slots)."""
    slots = sum(count for _, count in places)
    return RunningAllocation(
        name, slots, 0, start, placements=tuple(Placement(*p) for p in places), **settings
    )


def make_plan(
    rules: SchedulerRules, agents: Sequence[AgentCapacity], *jobs: Job, starts_max: int = 1000
) -> SchedulePlan:
    """Return the plan for the jobs."""
    return schedule_jobs(jobs, agents, rules, starts_max)


def started_requests(plan: SchedulePlan) -> list[str]:
    """Return the names of the started requests, in order."""
    return [start.request.allocation_id for start in plan.starts]


def preempted_allocations(plan: SchedulePlan) -> list[str]:
    """Return the names of the preempted allocations, in order."""
    return [victim.allocation.allocation_id for victim in plan.victims]
