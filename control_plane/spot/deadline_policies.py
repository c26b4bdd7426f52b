"""Policies that decide whether work with a deadline runs on a spot machine, on-demand, or waits.

Source: Wu, Chiang, Mao, Yang, Friedman, Shenker and Stoica, "Can't Be Late: Optimizing Spot
Instance Savings under Deadlines" (NSDI 2024). Its terms: C(t) is the computing left, R(t) the time
left to the deadline, d the changeover (launch, set up, what is computed again), which is paid at
the price of the new machine. The slack is R(t) - C(t). Rules of all policies, section 3.3:

- Thrifty: nothing runs once C(t) = 0.
- Safety net: when nothing runs and R(t) < C(t) + 2d, go on-demand and stay there until the end. On
  a spot machine that is taken with R(t) >= C(t) + 2d the slack never falls below d before it is
  lost, which is what it takes to go on-demand after all.
- Exploitation: a spot machine is kept until it is lost.

A policy is a function of a job's state at one moment: it keeps no state. Decisions are at most
`tick_ms` apart, so waiting gives up that much slack before the next decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

HOUR_MS = 3_600_000
LOSS_INTERVAL_MS = 4 * HOUR_MS


class MachineKind(StrEnum):
    """The machine that work runs on, and that a policy chooses; NONE: the work waits."""

    NONE = "wait"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True)
class DeadlineJob:
    """Work with a deadline: everything that does not change while it runs.

    `work_ms`: computing in all. `changeover_ms`: the longest time from launching a machine until
    the work continues on it. `tick_ms`: the longest time between two decisions. `loss_interval_ms`:
    mean computing time between two losses of spot machines.
    """

    work_ms: int
    submitted_ms: int
    deadline_ms: int
    changeover_ms: int
    tick_ms: int
    loss_interval_ms: int = LOSS_INTERVAL_MS

    @property
    def is_feasible(self) -> bool:
        """Whether an on-demand machine launched at the submission meets the deadline."""
        return self.submitted_ms + self.changeover_ms + self.work_ms <= self.deadline_ms


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state of a job and of the market at one moment.

    `machine`: the machine that the work has now, NONE if its spot machine was lost; `starting_ms`:
    the rest of its changeover. `spot_available`: a suitable spot offering is available. Prices are
    per hour, in one unit.
    """

    now_ms: int
    done_ms: int
    machine: MachineKind
    starting_ms: int
    spot_available: bool
    spot_price: float
    on_demand_price: float


Policy = Callable[[DeadlineJob, JobSnapshot], MachineKind]


def on_demand_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """On-demand from the start to the end: the baseline of the others."""
    return MachineKind.NONE if snapshot.done_ms >= job.work_ms else MachineKind.ON_DEMAND


def greedy_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Section 3.4: spot machines and nothing else until the safety net, then on-demand."""
    if snapshot.done_ms >= job.work_ms:
        return MachineKind.NONE
    if snapshot.machine is MachineKind.ON_DEMAND:
        return MachineKind.ON_DEMAND
    if _is_safe_on_spot(job, snapshot):
        return MachineKind.SPOT
    return MachineKind.NONE if _can_wait(job, snapshot, 0) else MachineKind.ON_DEMAND


def uniform_progress_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Section 5.2.2, as published, with cp(t) for what is done and ep(t) = t C(0) / R(0).

    1. Uniform progress: when nothing runs and cp(t) < ep(t), go on-demand to catch up.
    2. Taking risks: take a spot machine whenever there is one, behind or not.
    3. Hysteresis: stay on-demand until cp(t) >= ep(t + 2d), then take a spot machine or wait.
    """
    if snapshot.done_ms >= job.work_ms:
        return MachineKind.NONE
    on_demand = snapshot.machine is MachineKind.ON_DEMAND
    ahead_ms = 2 * job.changeover_ms if on_demand else 0
    is_behind = not _has_progressed(job, snapshot, ahead_ms)
    if on_demand and is_behind:
        return MachineKind.ON_DEMAND
    if _is_safe_on_spot(job, snapshot):
        return MachineKind.SPOT
    return (
        MachineKind.NONE if not is_behind and _can_wait(job, snapshot, 0) else MachineKind.ON_DEMAND
    )


def reserved_slack_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Wait while there is slack beyond a reserve for the changeovers still to come.

    With d = 0 it is best to wait for spot machines until C(t) = R(t), and from then on to compute
    on-demand whenever there is none (section 3.2): nothing is bought before it is needed, and no
    spot machine is missed. With d > 0 that leaves no slack to come back to a spot machine. So the
    wait ends 2d earlier (to a spot machine and back) for the next change and for each of those to
    be expected, C(t) / loss_interval. Computing on-demand spends no slack: the reserve is left for
    the spot machines that come later, one after the other.

    Prices may change: a spot machine is taken or kept while that is the cheaper way to do the rest.
    """
    if snapshot.done_ms >= job.work_ms:
        return MachineKind.NONE
    if _is_safe_on_spot(job, snapshot) and _is_spot_cheaper(job, snapshot):
        return MachineKind.SPOT
    if snapshot.machine is MachineKind.ON_DEMAND:
        return MachineKind.ON_DEMAND
    return (
        MachineKind.NONE
        if _can_wait(job, snapshot, reserve_ms(job, snapshot))
        else (MachineKind.ON_DEMAND)
    )


def reserve_ms(job: DeadlineJob, snapshot: JobSnapshot) -> int:
    """The slack that `reserved_slack_policy` does not spend on waiting: 2d (1 + C(t) /
    loss_interval).
    """
    left_ms = job.work_ms - snapshot.done_ms
    return 2 * job.changeover_ms * (job.loss_interval_ms + left_ms) // job.loss_interval_ms


def slack_ms(job: DeadlineJob, snapshot: JobSnapshot) -> int:
    """The slack, R(t) - C(t), below zero when the deadline cannot be met."""
    return job.deadline_ms - snapshot.now_ms - (job.work_ms - snapshot.done_ms)


def _is_safe_on_spot(job: DeadlineJob, snapshot: JobSnapshot) -> bool:
    """Whether work on a spot machine could still go on-demand in time when that is lost."""
    if not snapshot.spot_available:
        return False
    slack = slack_ms(job, snapshot)
    if snapshot.machine is MachineKind.SPOT:
        # A changeover that takes too long is given up; late work has nothing to lose.
        return slack < job.changeover_ms or slack - snapshot.starting_ms >= job.changeover_ms
    return slack >= 2 * job.changeover_ms


def _can_wait(job: DeadlineJob, snapshot: JobSnapshot, reserve: int) -> bool:
    """Whether going on-demand is still safe at the next decision, with so much slack to spare."""
    slack = slack_ms(job, snapshot)
    least = job.changeover_ms + max(reserve, job.changeover_ms - job.tick_ms)
    return slack - job.tick_ms >= least


def _has_progressed(job: DeadlineJob, snapshot: JobSnapshot, ahead_ms: int) -> bool:
    """Whether cp(t) >= ep(t + ahead); both sides are multiplied by R(0)."""
    at_ms = snapshot.now_ms - job.submitted_ms + ahead_ms
    return snapshot.done_ms * (job.deadline_ms - job.submitted_ms) >= at_ms * job.work_ms


def _is_spot_cheaper(job: DeadlineJob, snapshot: JobSnapshot) -> bool:
    """Whether all that is left costs less on spot machines, a changeover to them included."""
    left_ms = job.work_ms - snapshot.done_ms

    def paid_ms(machine: MachineKind) -> int:
        same = machine is snapshot.machine
        return left_ms + (snapshot.starting_ms if same else job.changeover_ms)

    on_spot = snapshot.spot_price * paid_ms(MachineKind.SPOT)
    return on_spot < snapshot.on_demand_price * paid_ms(MachineKind.ON_DEMAND)


POLICIES: dict[str, Policy] = {
    "on-demand": on_demand_policy,
    "greedy": greedy_policy,
    "uniform progress": uniform_progress_policy,
    "reserved slack": reserved_slack_policy,
}
