"""The comparison of all policies on a piece of work and a trace, and with the optimum."""

from __future__ import annotations

from typing import Any

from control_plane.spot.deadline_policies import POLICIES, DeadlineJob, MachineKind, Policy
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import replay_policy
from control_plane.spot.traces import SpotTrace, availability

MACHINE_SIGNS = {MachineKind.NONE: ".", MachineKind.SPOT: "s", MachineKind.ON_DEMAND: "D"}
"""The character of a tick in a report's `course`."""


def compare_policies(job: DeadlineJob, trace: SpotTrace) -> dict[str, Any]:
    """Replay every policy and return a report for JSON.

    The shares in the report are fractions of the cost of the on-demand policy. `course` has a
    character per tick: `s` for a spot machine, `D` for on-demand, `.` for waiting. `market` has `s`
    for each tick with spot machines and `.` for other ticks.

    The job must be feasible, and the trace must last until its deadline.
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
        "market": "".join("s" if available else "." for available in trace.available[:ticks]),
        "optimum_share": optimum / alone,
        "policies": [
            _policy_report(name, policy, job, trace, alone) for name, policy in _ordered_policies()
        ],
    }


def _ordered_policies() -> list[tuple[str, Policy]]:
    """Return the policies, beginning with the policy that clusters use."""
    return list(POLICIES.items())[::-1]


def _policy_report(
    name: str, policy: Policy, job: DeadlineJob, trace: SpotTrace, alone: float
) -> dict[str, Any]:
    """Replay a policy and return its entry in the report."""
    result = replay_policy(policy, job, trace)
    return {
        "policy": name,
        "share": result.cost / alone,
        "finished_seconds": None if result.finished_ms is None else result.finished_ms / 1000,
        "spot_seconds": result.spot_ms / 1000,
        "on_demand_seconds": result.on_demand_ms / 1000,
        "starts": result.starts,
        "losses": result.losses,
        "course": "".join(MACHINE_SIGNS[machine] for machine in result.machines),
    }
