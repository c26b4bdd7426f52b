"""Jobs and agents for tests of schedulers."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from control_plane.scheduling.model import (
    Capacity,
    Holding,
    Job,
    Place,
    Request,
    SchedulePlan,
    SchedulerRules,
    summed,
)
from control_plane.scheduling.schedule import schedule

FAIR_SHARE = SchedulerRules("fair_share")
PRIORITY = SchedulerRules("priority")
PREEMPTION = SchedulerRules("priority", preemption=True)
ROUND_ROBIN = SchedulerRules("round_robin")


def agent(name: str, total: int, free: int | None = None, **settings: Any) -> Capacity:
    """An agent, all of whose slots are free unless said otherwise."""
    return Capacity(name, total, total if free is None else free, **settings)


def job(
    group: int, *slots: int, runs: Sequence[Holding] = (), submitted_ms: int = 0, **settings: Any
) -> Job:
    """A job that waits for `slots` each, submitted in the order of groups. Its trials are named
    after it: the second of job 3 that waits is "3b".
    """
    submitted_ms = submitted_ms or group
    single_agent, label = settings.get("single_agent", False), settings.get("label", "")
    pending = [
        Request(
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
    return summed(Job(group, submitted_ms, pending=pending, holdings=held, **settings))


def running(name: str, start: int, *places: tuple[str, int], **settings: Any) -> Holding:
    """An allocation that runs on these places."""
    slots = sum(count for _, count in places)
    return Holding(name, slots, 0, start, places=tuple(Place(*p) for p in places), **settings)


def planned(
    rules: SchedulerRules, agents: Sequence[Capacity], *jobs: Job, starts_max: int = 1000
) -> SchedulePlan:
    """The plan."""
    return schedule(jobs, agents, rules, starts_max)


def started(plan: SchedulePlan) -> list[str]:
    """Which requests start, in order."""
    return [start.request.allocation for start in plan.starts]


def released(plan: SchedulePlan) -> list[str]:
    """Which allocations have to go, in order."""
    return [victim.holding.allocation for victim in plan.victims]
