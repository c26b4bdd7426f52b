"""The replay of a policy on a trace: machines and costs tick by tick in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.spot.deadline_policies import (
    HOUR_MS,
    DeadlineJob,
    JobSnapshot,
    MachineKind,
    Policy,
)
from control_plane.spot.traces import SpotTrace

ON_DEMAND_PRICE = 1.0
"""The price of an hour on-demand. Costs and spot prices are relative to it."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay."""

    cost: float
    """The cost in hours of an on-demand machine."""
    finished_ms: int | None
    """The time from the submission to the end of the work. None if not finished by the deadline."""
    starts: int
    """The number of changeovers."""
    losses: int
    """The number of lost spot machines."""
    spot_ms: int
    """The paid time of spot machines."""
    on_demand_ms: int
    """The paid time of on-demand machines."""
    machines: tuple[MachineKind, ...]
    """The machine at each tick."""


@dataclass(slots=True)
class _ReplayState:
    """The progress of a replay. Fields are named as in `JobSnapshot` and `ReplayResult`."""

    done_ms: int = 0
    machine: MachineKind = MachineKind.NONE
    starting_ms: int = 0
    cost: float = 0.0
    starts: int = 0
    losses: int = 0
    finished_ms: int | None = None


def trace_job(trace: SpotTrace, work_ms: int, deadline_ms: int, changeover_ms: int) -> DeadlineJob:
    """Return a job that is submitted at the beginning of the trace and decides at each tick."""
    return DeadlineJob(work_ms, 0, deadline_ms, changeover_ms, trace.tick_ms)


def replay_policy(policy: Policy, job: DeadlineJob, trace: SpotTrace) -> ReplayResult:
    """Run the work on the trace until the work is done, or the deadline or the end of the trace
    comes.

    The trace begins at the submission and has the job's ticks. The market state of a tick lasts for
    the whole tick. A machine is paid from the start of its changeover until its loss or
    replacement, and the last machine until the work is done.
    """
    state = _ReplayState()
    machines: list[MachineKind] = []
    paid_ms = dict.fromkeys(MachineKind, 0)
    ticks = min(len(trace.available), -(-(job.deadline_ms - job.submitted_ms) // job.tick_ms))
    for tick in range(ticks):
        now_ms = job.submitted_ms + tick * job.tick_ms
        _apply_decision(state, policy, job, _job_snapshot(state, trace, tick, now_ms))
        machines.append(state.machine)
        paid_ms[state.machine] += _run_tick(state, job, trace.prices[tick], now_ms)
        if state.finished_ms is not None:
            break
    return ReplayResult(
        cost=state.cost,
        finished_ms=state.finished_ms,
        starts=state.starts,
        losses=state.losses,
        spot_ms=paid_ms[MachineKind.SPOT],
        on_demand_ms=paid_ms[MachineKind.ON_DEMAND],
        machines=tuple(machines),
    )


def _job_snapshot(state: _ReplayState, trace: SpotTrace, tick: int, now_ms: int) -> JobSnapshot:
    """Return the snapshot for the decision at a tick.

    If the market has no spot machines at this tick, first remove the work's spot machine and count
    a loss.
    """
    available = trace.available[tick]
    if state.machine is MachineKind.SPOT and not available:
        state.machine, state.starting_ms = MachineKind.NONE, 0
        state.losses += 1
    return JobSnapshot(
        now_ms=now_ms,
        done_ms=state.done_ms,
        machine=state.machine,
        starting_ms=state.starting_ms,
        spot_available=available,
        spot_price=trace.prices[tick],
        on_demand_price=ON_DEMAND_PRICE,
    )


def _apply_decision(
    state: _ReplayState, policy: Policy, job: DeadlineJob, snapshot: JobSnapshot
) -> None:
    """Ask the policy for a machine, and start a changeover if the machine changes."""
    chosen = policy(job, snapshot)
    assert chosen is not MachineKind.SPOT or snapshot.spot_available, (chosen, snapshot)
    if chosen is state.machine:
        return
    state.machine = chosen
    state.starting_ms = 0 if chosen is MachineKind.NONE else job.changeover_ms
    state.starts += chosen is not MachineKind.NONE


def _run_tick(state: _ReplayState, job: DeadlineJob, spot_price: float, now_ms: int) -> int:
    """Run the machine for a tick, update the state, and return the paid milliseconds."""
    if state.machine is MachineKind.NONE:
        return 0
    starting_ms = min(state.starting_ms, job.tick_ms)
    worked_ms = min(job.tick_ms - starting_ms, job.work_ms - state.done_ms)
    state.starting_ms -= starting_ms
    state.done_ms += worked_ms
    paid_ms = starting_ms + worked_ms
    price = spot_price if state.machine is MachineKind.SPOT else ON_DEMAND_PRICE
    state.cost += price * paid_ms / HOUR_MS
    finished_ms = now_ms + paid_ms - job.submitted_ms
    if state.done_ms == job.work_ms and finished_ms <= job.deadline_ms - job.submitted_ms:
        state.finished_ms = finished_ms
    return paid_ms
