"""The comparison of all policies on one piece of work and one trace, next to the optimum."""

from __future__ import annotations

from typing import Any

from control_plane.spot.deadline_policies import POLICIES, DeadlineJob, MachineKind, Policy
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import replay_policy
from control_plane.spot.traces import SpotTrace, availability

# The sign of a tick in a report's course.
MACHINE_SIGNS = {MachineKind.NONE: ".", MachineKind.SPOT: "s", MachineKind.ON_DEMAND: "D"}


def compare_policies(job: DeadlineJob, trace: SpotTrace) -> dict[str, Any]:
    """Replay every policy; shares are of the cost of on-demand alone. Courses have a sign for each
    tick: `s` on a spot machine, `D` on-demand, `.` waiting; `market` has `s` where there were spot
    machines.

    The job must be feasible, and the trace last until its deadline.
    """
    length_ms = job.deadline_ms - job.submitted_ms
    ticks = -(-length_ms // job.tick_ms)
    alone = replay_policy(POLICIES["on-demand"], job, trace).cost
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
        "policies": [
            _policy_report(name, policy, job, trace, alone) for name, policy in _ordered_policies()
        ],
    }


def _ordered_policies() -> list[tuple[str, Policy]]:
    """The policies, the one in use first."""
    return list(POLICIES.items())[::-1]


def _policy_report(
    name: str, policy: Policy, job: DeadlineJob, trace: SpotTrace, alone: float
) -> dict[str, Any]:
    found = replay_policy(policy, job, trace)
    return {
        "policy": name,
        "share": found.cost / alone,
        "finished_seconds": None if found.finished_ms is None else found.finished_ms / 1000,
        "spot_seconds": found.spot_ms / 1000,
        "on_demand_seconds": found.on_demand_ms / 1000,
        "starts": found.starts,
        "losses": found.losses,
        "course": "".join(MACHINE_SIGNS[machine] for machine in found.machines),
    }
