"""What a policy would have cost on a trace: its machines tick by tick in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.spot.deadline import HOUR_MS, Job, Machine, Policy, Standing
from control_plane.spot.traces import SpotTrace

ON_DEMAND_PRICE = 1.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """`cost` is in hours of an on-demand machine. `finished_ms` counts from the submission, None:
    not before the deadline. `starts` are the changeovers, `machines` what ran at each tick.
    """

    cost: float
    finished_ms: int | None
    starts: int
    losses: int
    spot_ms: int
    on_demand_ms: int
    machines: tuple[Machine, ...]


@dataclass(slots=True)
class _Run:
    """Where a replay stands."""

    done_ms: int = 0
    machine: Machine = Machine.NONE
    starting_ms: int = 0
    cost: float = 0.0
    starts: int = 0
    losses: int = 0
    finished_ms: int | None = None


def job_on(trace: SpotTrace, work_ms: int, deadline_ms: int, changeover_ms: int) -> Job:
    """A job that is submitted when the trace begins and decides at each of its ticks."""
    return Job(work_ms, 0, deadline_ms, changeover_ms, trace.tick_ms)


def replay(policy: Policy, job: Job, trace: SpotTrace) -> Replayed:
    """Runs the work on the trace until it is done or the deadline, or the trace, is over.

    The trace begins at the submission and its ticks are the job's: what it says of a tick holds
    for all of it. Machines are paid from the start of their changeover until they are lost or
    left, and the last one until the work is done.
    """
    run = _Run()
    machines: list[Machine] = []
    paid_ms = dict.fromkeys(Machine, 0)
    ticks = min(len(trace.available), -(-(job.deadline_ms - job.submitted_ms) // job.tick_ms))
    for tick in range(ticks):
        now_ms = job.submitted_ms + tick * job.tick_ms
        _decide(run, policy, job, _standing(run, trace, tick, now_ms))
        machines.append(run.machine)
        paid_ms[run.machine] += _run_tick(run, job, trace.prices[tick], now_ms)
        if run.finished_ms is not None:
            break
    return Replayed(
        cost=run.cost,
        finished_ms=run.finished_ms,
        starts=run.starts,
        losses=run.losses,
        spot_ms=paid_ms[Machine.SPOT],
        on_demand_ms=paid_ms[Machine.ON_DEMAND],
        machines=tuple(machines),
    )


def _standing(run: _Run, trace: SpotTrace, tick: int, now_ms: int) -> Standing:
    available = trace.available[tick]
    if run.machine is Machine.SPOT and not available:
        run.machine, run.starting_ms = Machine.NONE, 0
        run.losses += 1
    return Standing(
        now_ms=now_ms,
        done_ms=run.done_ms,
        machine=run.machine,
        starting_ms=run.starting_ms,
        spot_available=available,
        spot_price=trace.prices[tick],
        on_demand_price=ON_DEMAND_PRICE,
    )


def _decide(run: _Run, policy: Policy, job: Job, standing: Standing) -> None:
    chosen = policy(job, standing)
    assert chosen is not Machine.SPOT or standing.spot_available, (chosen, standing)
    if chosen is run.machine:
        return
    run.machine = chosen
    run.starting_ms = 0 if chosen is Machine.NONE else job.changeover_ms
    run.starts += chosen is not Machine.NONE


def _run_tick(run: _Run, job: Job, spot_price: float, now_ms: int) -> int:
    """The milliseconds of this tick that are paid."""
    if run.machine is Machine.NONE:
        return 0
    starting_ms = min(run.starting_ms, job.tick_ms)
    worked_ms = min(job.tick_ms - starting_ms, job.work_ms - run.done_ms)
    run.starting_ms -= starting_ms
    run.done_ms += worked_ms
    paid_ms = starting_ms + worked_ms
    price = spot_price if run.machine is Machine.SPOT else ON_DEMAND_PRICE
    run.cost += price * paid_ms / HOUR_MS
    finished_ms = now_ms + paid_ms - job.submitted_ms
    if run.done_ms == job.work_ms and finished_ms <= job.deadline_ms - job.submitted_ms:
        run.finished_ms = finished_ms
    return paid_ms
