"""Policies that decide whether work with a deadline runs on a spot machine, on-demand, or waits.

Source: Wu, Chiang, Mao, Yang, Friedman, Shenker and Stoica, "Can't Be Late: Optimizing Spot
Instance Savings under Deadlines" (NSDI 2024). The paper's terms:

- C(t) is the remaining computing time, R(t) the time until the deadline.
- d is the changeover: launch, setup and repeated computation. It is paid at the price of the new
  machine.
- The slack is R(t) - C(t).

All policies follow the rules of section 3.3:

- Thrifty: nothing runs after C(t) = 0.
- Safety net: if nothing runs and R(t) < C(t) + 2d, use an on-demand machine until the end. A spot
  machine started with R(t) >= C(t) + 2d leaves a slack of at least d when it is lost. That slack is
  enough to change over to on-demand.
- Exploitation: a spot machine is kept until it is lost.

A policy is a function of a job's state at a moment and keeps no state. Decisions are at most
`tick_ms` apart, so waiting costs up to that much slack until the next decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

HOUR_MS = 3_600_000
LOSS_INTERVAL_MS = 4 * HOUR_MS
"""The default mean computing time between two losses of spot machines."""


class MachineKind(StrEnum):
    """The kind of machine that work runs on or a policy chooses. NONE means that the work waits."""

    NONE = "wait"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True)
class DeadlineJob:
    """Work with a deadline: the facts that do not change while the work runs."""

    work_ms: int
    """The total computing time."""
    submitted_ms: int
    """The time of the submission (epoch ms in a cluster, 0 in a replay)."""
    deadline_ms: int
    """The deadline, on the clock of `submitted_ms`."""
    changeover_ms: int
    """The longest time from the launch of a machine until the work continues there."""
    tick_ms: int
    """The longest time between two decisions."""
    loss_interval_ms: int = LOSS_INTERVAL_MS
    """The mean computing time between two losses of spot machines."""

    @property
    def is_feasible(self) -> bool:
        """Whether an on-demand machine launched at the submission meets the deadline."""
        return self.submitted_ms + self.changeover_ms + self.work_ms <= self.deadline_ms


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The state of a job and of the market at a moment. Prices are per hour, in any common unit."""

    now_ms: int
    done_ms: int
    """The computing time already done."""
    machine: MachineKind
    """The machine of the work. NONE after the loss of a spot machine."""
    starting_ms: int
    """The rest of the machine's changeover."""
    spot_available: bool
    """Whether a suitable spot offering is available."""
    spot_price: float
    on_demand_price: float


Policy = Callable[[DeadlineJob, JobSnapshot], MachineKind]
"""A function that chooses the machine to use until the next decision."""


def on_demand_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Choose on-demand from start to end: the baseline of the other policies."""
    return MachineKind.NONE if snapshot.done_ms >= job.work_ms else MachineKind.ON_DEMAND


def greedy_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Choose spot machines or wait until the safety net, then on-demand (section 3.4)."""
    if snapshot.done_ms >= job.work_ms:
        return MachineKind.NONE
    if snapshot.machine is MachineKind.ON_DEMAND:
        return MachineKind.ON_DEMAND
    if _is_safe_on_spot(job, snapshot):
        return MachineKind.SPOT
    return MachineKind.NONE if _can_wait(job, snapshot, 0) else MachineKind.ON_DEMAND


def uniform_progress_policy(job: DeadlineJob, snapshot: JobSnapshot) -> MachineKind:
    """Choose by uniform progress, as published in section 5.2.2.

    cp(t) is the computation done, and ep(t) = t C(0) / R(0) is the expected computation.

    1. Uniform progress: if nothing runs and cp(t) < ep(t), use on-demand to catch up.
    2. Taking risks: use a spot machine whenever available, behind or not.
    3. Hysteresis: stay on-demand until cp(t) >= ep(t + 2d), then use a spot machine or wait.
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
    """Wait for spot machines while the slack exceeds a reserve for the expected changeovers.

    With d = 0, the best policy waits until C(t) = R(t), then computes on-demand whenever no spot
    machine is available (section 3.2). Nothing is bought before it is needed, and no spot machine
    is missed. With d > 0, that policy leaves no slack to return to a spot machine.

    So the wait ends earlier, by 2d (to a spot machine and back) for the next change and for each of
    the C(t) / loss_interval expected losses. Computing on-demand uses no slack, so the reserve is
    left for later spot machines.

    Prices may change. A spot machine is started or kept only while it is the cheaper way to finish.
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
    """Return the slack that `reserved_slack_policy` does not use for waiting.

    The reserve is 2d (1 + C(t) / loss_interval).
    """
    left_ms = job.work_ms - snapshot.done_ms
    return 2 * job.changeover_ms * (job.loss_interval_ms + left_ms) // job.loss_interval_ms


def slack_ms(job: DeadlineJob, snapshot: JobSnapshot) -> int:
    """Return the slack R(t) - C(t), which is negative if the deadline cannot be met."""
    return job.deadline_ms - snapshot.now_ms - (job.work_ms - snapshot.done_ms)


def _is_safe_on_spot(job: DeadlineJob, snapshot: JobSnapshot) -> bool:
    """Return whether a spot machine is available and its loss would still leave time for on-demand.

    Also return True for a running spot machine if the slack is already below the changeover.
    """
    if not snapshot.spot_available:
        return False
    slack = slack_ms(job, snapshot)
    if snapshot.machine is MachineKind.SPOT:
        # A changeover that takes too long is abandoned. Work that is already late has no deadline
        # to protect, so the spot machine may stay.
        return slack < job.changeover_ms or slack - snapshot.starting_ms >= job.changeover_ms
    return slack >= 2 * job.changeover_ms


def _can_wait(job: DeadlineJob, snapshot: JobSnapshot, reserve: int) -> bool:
    """Return whether on-demand is still safe at the next decision, with `reserve` slack left."""
    slack = slack_ms(job, snapshot)
    least = job.changeover_ms + max(reserve, job.changeover_ms - job.tick_ms)
    return slack - job.tick_ms >= least


def _has_progressed(job: DeadlineJob, snapshot: JobSnapshot, ahead_ms: int) -> bool:
    """Return whether cp(t) >= ep(t + ahead). Both sides are multiplied by R(0)."""
    at_ms = snapshot.now_ms - job.submitted_ms + ahead_ms
    return snapshot.done_ms * (job.deadline_ms - job.submitted_ms) >= at_ms * job.work_ms


def _is_spot_cheaper(job: DeadlineJob, snapshot: JobSnapshot) -> bool:
    """Return whether the remaining work costs less on spot machines, changeover included."""
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
"""The policies by name. Clusters use the last policy."""
