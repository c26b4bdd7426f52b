"""Quiet hours of a pool: periods in which the pool starts no work. Pure.

The rules are times of the week in a time zone. `control_plane/quiet_times.py` computes the next
periods from the rules, because time zones are files of the machine. The pool stores both.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from control_plane.scheduling.model import Job, SchedulePlan, Victim

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""The days of the week, in the order of `datetime.weekday`."""


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A rule of a pool: quiet hours on days of the week."""

    days: tuple[int, ...]
    """The days on which quiet hours begin, each an index of DAYS."""
    begin: int
    """The begin in minutes of the day, from 0 to 1439."""
    end: int
    """The end in minutes of the day, from 0 to 1440. An end that is not after the begin is on the
    next day.
    """
    time_zone: str
    """The name of the time zone."""
    checkpoints: bool = False
    """Whether running work is preempted. Otherwise it finishes."""
    urgent_priority: int | None = None
    """The priority up to which jobs start in spite of the quiet hours. None: no job starts."""


@dataclass(frozen=True, slots=True)
class QuietPeriod:
    """A period with constant rules for work."""

    from_ms: int
    """The begin in epoch ms."""
    until_ms: int
    """The end in epoch ms, at which work may start again."""
    checkpoints: bool = False
    """Whether running work is preempted."""
    urgent_priority: int | None = None
    """The priority up to which jobs start in the period. None: no job starts."""


def period_at(periods: Iterable[QuietPeriod], now_ms: int) -> QuietPeriod | None:
    """Return the period of the time `now_ms`. Return None outside of all periods."""
    return next((period for period in periods if period.from_ms <= now_ms < period.until_ms), None)


def quiet_end_ms(periods: Sequence[QuietPeriod], now_ms: int) -> int | None:
    """Return the end of the quiet hours at `now_ms`, in epoch ms.

    A period that follows without a gap is part of the quiet hours. Return None outside of all
    periods.
    """
    end_ms = None
    for period in sorted(periods, key=lambda period: period.from_ms):
        if period.from_ms <= (now_ms if end_ms is None else end_ms) < period.until_ms:
            end_ms = period.until_ms
    return end_ms


def next_quiet_ms(periods: Iterable[QuietPeriod], now_ms: int) -> int | None:
    """Return the begin of the first period after `now_ms`, in epoch ms. Return None without one."""
    return min((period.from_ms for period in periods if period.from_ms > now_ms), default=None)


def is_held_back(period: QuietPeriod, priority: int) -> bool:
    """Return whether a job with this priority may not start in the period.

    Priority 1 is the most important.
    """
    return period.urgent_priority is None or priority > period.urgent_priority


def startable_jobs(jobs: Iterable[Job], period: QuietPeriod) -> Iterator[Job]:
    """Yield the jobs of a scheduling pass in the period.

    Jobs that are held back have no requests. They keep their running allocations.
    """
    for job in jobs:
        if is_held_back(period, job.priority):
            yield replace(job, pending=(), pending_slots={}, excluding=0, waits_since_ms=None)
        else:
            yield job


def add_quiet_hours(
    plan: SchedulePlan, jobs: Sequence[Job], period: QuietPeriod, text: str
) -> SchedulePlan:
    """Return the plan with the victims of the period, and with the reason why jobs wait.

    The reason of the plan stays if the period holds no waiting job back.

    Args:
        plan: a plan for `startable_jobs`.
        jobs: all jobs of the pool.
        period: the present period.
        text: the sentence about the quiet hours, from `quiet_text`.
    """
    chosen = {victim.allocation.allocation_id for victim in plan.victims}
    victims = (*plan.victims, *_quiet_victims(jobs, period, chosen, text))
    holds_back = any(job.pending_slots and is_held_back(period, job.priority) for job in jobs)
    reason = f"waits: {text}" if holds_back else plan.wait_reason
    return replace(plan, victims=victims, wait_reason=reason)


def _quiet_victims(
    jobs: Iterable[Job], period: QuietPeriod, chosen: Container[str], reason: str
) -> Iterator[Victim]:
    """Yield the running allocations that the period preempts, in the order of the jobs.

    Yield nothing if running work finishes. Urgent jobs, allocations that cannot be preempted, and
    allocations that were asked before are left out.

    Args:
        jobs: the jobs of the pool.
        period: the present period.
        chosen: the ids of allocations that the scheduler preempts anyway.
        reason: the reason for users.
    """
    if not period.checkpoints:
        return
    for job in jobs:
        if not is_held_back(period, job.priority):
            continue
        for running in job.allocations:
            is_asked = running.leaving or running.allocation_id in chosen
            if running.preemptible and not is_asked:
                yield Victim(running, reason)


def quiet_text(pool: str, periods: Sequence[QuietPeriod], now_ms: int) -> str:
    """Return the sentence about the present quiet hours, with the end in UTC.

    Return "" outside of all periods.
    """
    end_ms = quiet_end_ms(periods, now_ms)
    return "" if end_ms is None else f"pool {pool} has quiet hours until {moment_text(end_ms)}"


def moment_text(time_ms: int) -> str:
    """Return a time in UTC, to the minute, for example `2026-11-30 06:00 UTC`."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M} UTC"
