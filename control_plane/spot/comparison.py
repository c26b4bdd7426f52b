"""What each policy makes of one piece of work on one trace, next to the optimum."""

from __future__ import annotations

from typing import Any

from control_plane.spot.deadline import POLICIES, Job, Machine, Policy
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import replay
from control_plane.spot.traces import SpotTrace, availability

# One sign for each tick of a course.
SIGNS = {Machine.NONE: ".", Machine.SPOT: "s", Machine.ON_DEMAND: "D"}


def compared(job: Job, trace: SpotTrace) -> dict[str, Any]:
    """Shares are of the cost of on-demand alone. Courses have a sign for each tick: `s` on a spot
    machine, `D` on-demand, `.` waiting; `market` has `s` where there were spot machines.

    The job is to be feasible, and the trace to last until its deadline.
    """
    length_ms = job.deadline_ms - job.submitted_ms
    ticks = -(-length_ms // job.tick_ms)
    alone = replay(POLICIES["on-demand"], job, trace).cost
    optimum = optimum_cost(job, trace)
    assert optimum is not None
    return {
        "work_seconds": job.work_ms / 1000,
        "deadline_seconds": length_ms / 1000,
        "changeover_seconds": job.changeover_ms / 1000,
        "tick_seconds": job.tick_ms / 1000,
        "availability": availability(trace, length_ms),
        "market": "".join("s" if there else "." for there in trace.available[:ticks]),
        "optimum_share": optimum / alone,
        "policies": [_described(name, policy, job, trace, alone) for name, policy in _ranked()],
    }


def _ranked() -> list[tuple[str, Policy]]:
    """The one that is used first."""
    return list(POLICIES.items())[::-1]


def _described(
    name: str, policy: Policy, job: Job, trace: SpotTrace, alone: float
) -> dict[str, Any]:
    found = replay(policy, job, trace)
    return {
        "policy": name,
        "share": found.cost / alone,
        "finished_seconds": None if found.finished_ms is None else found.finished_ms / 1000,
        "spot_seconds": found.spot_ms / 1000,
        "on_demand_seconds": found.on_demand_ms / 1000,
        "starts": found.starts,
        "losses": found.losses,
        "course": "".join(SIGNS[machine] for machine in found.machines),
    }
