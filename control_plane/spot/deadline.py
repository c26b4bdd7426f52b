"""Whether work with a deadline runs on a spot machine, on an on-demand one, or waits.

Source: Wu, Chiang, Mao, Yang, Friedman, Shenker and Stoica, "Can't Be Late: Optimizing Spot
Instance Savings under Deadlines" (NSDI 2024). Its terms: C(t) is the computing left, R(t) the time
left to the deadline, d the changeover (launch, set up, what is computed again), which is paid at
the price of the new machine. The slack is R(t) - C(t). Rules of all policies, section 3.3:

- Thrifty: nothing runs once C(t) = 0.
- Safety net: when nothing runs and R(t) < C(t) + 2d, go on-demand and stay there until the end. On
  a spot machine that is taken with R(t) >= C(t) + 2d the slack never falls below d before it is
  lost, which is what it takes to go on-demand after all.
- Exploitation: a spot machine is kept until it is lost.

A policy is a function of what is known at one moment: it keeps no state. Decisions are at most
`tick_ms` apart, so whoever waits gives up that much slack before it can change its mind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

HOUR_MS = 3_600_000
SPELL_MS = 4 * HOUR_MS


class Machine(StrEnum):
    """What work runs on, and what a policy answers; NONE: on nothing, it waits."""

    NONE = "wait"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True)
class Job:
    """What stays the same while the work runs.

    `work_ms`: computing in all. `changeover_ms`: the longest time from asking for a machine until
    the work goes on where it was. `tick_ms`: the longest time between two decisions. `spell_ms`:
    how much computing goes by between two losses of spot machines, on the average.
    """

    work_ms: int
    submitted_ms: int
    deadline_ms: int
    changeover_ms: int
    tick_ms: int
    spell_ms: int = SPELL_MS

    @property
    def feasible(self) -> bool:
        """Whether an on-demand machine asked for at the submission meets the deadline."""
        return self.submitted_ms + self.changeover_ms + self.work_ms <= self.deadline_ms


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known at one moment.

    `machine`: what the work has now, NONE if its spot machine was lost; `starting_ms`: what is left
    of its changeover. `spot_available`: some spot offering would do. Prices are per hour, in one
    unit.
    """

    now_ms: int
    done_ms: int
    machine: Machine
    starting_ms: int
    spot_available: bool
    spot_price: float
    on_demand_price: float


Policy = Callable[[Job, Standing], Machine]


def on_demand(job: Job, standing: Standing) -> Machine:
    """On-demand from the start to the end: what the others are compared with."""
    return Machine.NONE if standing.done_ms >= job.work_ms else Machine.ON_DEMAND


def greedy(job: Job, standing: Standing) -> Machine:
    """Section 3.4: spot machines and nothing else until the safety net, then on-demand."""
    if standing.done_ms >= job.work_ms:
        return Machine.NONE
    if standing.machine is Machine.ON_DEMAND:
        return Machine.ON_DEMAND
    if _is_safe_on_spot(job, standing):
        return Machine.SPOT
    return Machine.NONE if _may_wait(job, standing, 0) else Machine.ON_DEMAND


def uniform_progress(job: Job, standing: Standing) -> Machine:
    """Section 5.2.2, as published, with cp(t) for what is done and ep(t) = t C(0) / R(0).

    1. Uniform progress: when nothing runs and cp(t) < ep(t), go on-demand to catch up.
    2. Taking risks: take a spot machine whenever there is one, behind or not.
    3. Hysteresis: stay on-demand until cp(t) >= ep(t + 2d), then take a spot machine or wait.
    """
    if standing.done_ms >= job.work_ms:
        return Machine.NONE
    on_demand = standing.machine is Machine.ON_DEMAND
    ahead_ms = 2 * job.changeover_ms if on_demand else 0
    is_behind = not _has_progressed(job, standing, ahead_ms)
    if on_demand and is_behind:
        return Machine.ON_DEMAND
    if _is_safe_on_spot(job, standing):
        return Machine.SPOT
    return Machine.NONE if not is_behind and _may_wait(job, standing, 0) else Machine.ON_DEMAND


def reserved_slack(job: Job, standing: Standing) -> Machine:
    """Wait while there is slack, but for a reserve that pays for the changeovers still to come.

    With d = 0 it is best to wait for spot machines until C(t) = R(t), and from then on to compute
    on-demand whenever there is none (section 3.2): nothing is bought before it is needed, and no
    spot machine is missed. With d > 0 that leaves no slack to come back to a spot machine. So the
    wait ends 2d earlier (to a spot machine and back) for the next change and for each of those to
    be expected, C(t) / spell. Computing on-demand spends no slack: what is reserved is there for
    the spot machines that come later, one after the other.

    Prices may change: a spot machine is taken or kept while that is the cheaper way to do what is
    left.
    """
    if standing.done_ms >= job.work_ms:
        return Machine.NONE
    if _is_safe_on_spot(job, standing) and _is_spot_cheaper(job, standing):
        return Machine.SPOT
    if standing.machine is Machine.ON_DEMAND:
        return Machine.ON_DEMAND
    return (
        Machine.NONE if _may_wait(job, standing, reserve_ms(job, standing)) else (Machine.ON_DEMAND)
    )


def reserve_ms(job: Job, standing: Standing) -> int:
    """The slack that `reserved_slack` does not wait away: 2d (1 + C(t) / spell)."""
    left_ms = job.work_ms - standing.done_ms
    return 2 * job.changeover_ms * (job.spell_ms + left_ms) // job.spell_ms


def slack_ms(job: Job, standing: Standing) -> int:
    """R(t) - C(t), below zero when the deadline cannot be met."""
    return job.deadline_ms - standing.now_ms - (job.work_ms - standing.done_ms)


def _is_safe_on_spot(job: Job, standing: Standing) -> bool:
    """Whether work on a spot machine could still go on-demand in time when that is lost."""
    if not standing.spot_available:
        return False
    slack = slack_ms(job, standing)
    if standing.machine is Machine.SPOT:
        # A changeover that takes too long is given up; late work has nothing to lose.
        return slack < job.changeover_ms or slack - standing.starting_ms >= job.changeover_ms
    return slack >= 2 * job.changeover_ms


def _may_wait(job: Job, standing: Standing, reserve: int) -> bool:
    """Whether on-demand is safe still at the next decision, with so much slack to spare."""
    slack = slack_ms(job, standing)
    least = job.changeover_ms + max(reserve, job.changeover_ms - job.tick_ms)
    return slack - job.tick_ms >= least


def _has_progressed(job: Job, standing: Standing, ahead_ms: int) -> bool:
    """cp(t) >= ep(t + ahead), multiplied by R(0)."""
    at_ms = standing.now_ms - job.submitted_ms + ahead_ms
    return standing.done_ms * (job.deadline_ms - job.submitted_ms) >= at_ms * job.work_ms


def _is_spot_cheaper(job: Job, standing: Standing) -> bool:
    """Whether all that is left costs less on spot machines, a changeover to them included."""
    left_ms = job.work_ms - standing.done_ms

    def paid_ms(machine: Machine) -> int:
        same = machine is standing.machine
        return left_ms + (standing.starting_ms if same else job.changeover_ms)

    on_spot = standing.spot_price * paid_ms(Machine.SPOT)
    return on_spot < standing.on_demand_price * paid_ms(Machine.ON_DEMAND)


POLICIES: dict[str, Policy] = {
    "on-demand": on_demand,
    "greedy": greedy,
    "uniform progress": uniform_progress,
    "reserved slack": reserved_slack,
}
