"""The quiet hours of a pool: no starts, preemption by setting, urgent jobs, and the end."""

from dataclasses import replace

import pytest

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.experiment import WaitEnded
from control_plane.actors.messages.pool import (
    PatienceEnded,
    PoolConfigured,
    PoolSettings,
    QuietHoursChecked,
)
from control_plane.actors.pool.quiet_hours import with_periods
from control_plane.scheduling.model import SchedulerRules
from control_plane.scheduling.quiet_hours import QuietHours, QuietPeriod
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    pool,
    preempted_trials,
    running,
    slots_released,
    slots_requested,
    write_job,
)

HOUR_MS = 3_600_000
BEGIN_MS, END_MS = START_MS + HOUR_MS, START_MS + 9 * HOUR_MS
RULE = QuietHours((0, 1, 2, 3, 4, 5, 6), 0, 480, "UTC")
PERIOD = QuietPeriod(BEGIN_MS, END_MS)
NEXT = QuietPeriod(BEGIN_MS + 24 * HOUR_MS, END_MS + 24 * HOUR_MS)
PRIORITY = SchedulerRules("priority")
# 1970-01-01 09:00:01 UTC.
TEXT = "pool default has quiet hours until 1970-01-01 09:00 UTC"


def quiet_pool(period: QuietPeriod = PERIOD, scheduler: SchedulerRules = PRIORITY) -> ActorHarness:
    """Create a pool with four slots, a running trial, and quiet hours that begin in an hour."""
    settings = PoolSettings(scheduler, quiet_hours=(RULE,), quiet_periods=(period, NEXT))
    return pool(agent_joined("a", 4), slots_requested(1, 1), settings=settings)


def check(actor: ActorHarness, now_ms: int, *periods: QuietPeriod) -> None:
    """Deliver the check of the maintenance at a time."""
    actor.now_ms = now_ms
    actor.deliver(QuietHoursChecked((RULE,), periods or (PERIOD, NEXT)))


def settings_of(actor: ActorHarness) -> PoolSettings:
    settings = actor.part("settings")
    assert isinstance(settings, PoolSettings)
    return settings


def test_work_starts_until_the_begin() -> None:
    actor = quiet_pool()
    actor.now_ms = BEGIN_MS - 1
    actor.deliver(slots_requested(2, 2))
    assert running(actor) == [1, 2]


def test_nothing_starts_from_the_begin_even_before_the_check() -> None:
    actor = quiet_pool()
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2))
    assert (running(actor), preempted_trials(actor)) == ([1], [])
    assert actor.state.wait_reason == f"waits: {TEXT}"
    assert f"waits: {TEXT}" in actor.reasons


def test_requests_without_slots_wait_too() -> None:
    actor = quiet_pool()
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2, slots=0))
    assert running(actor) == [1]


def test_running_work_finishes_by_default() -> None:
    actor = quiet_pool()
    check(actor, BEGIN_MS)
    assert (running(actor), preempted_trials(actor)) == ([1], [])
    assert settings_of(actor).is_quiet
    assert TEXT in actor.reasons


@pytest.mark.parametrize("draining", [False, True])
def test_running_work_saves_checkpoints_by_setting(draining: bool) -> None:
    actor = quiet_pool(replace(PERIOD, checkpoints=True))
    if draining:
        drained = replace(settings_of(actor), draining=True)
        actor.deliver(PoolConfigured("default", drained), slots_requested(9, 9))
    check(actor, BEGIN_MS, replace(PERIOD, checkpoints=True))
    assert preempted_trials(actor) == ["trial#1"]
    # A trial is asked once.
    actor.deliver(slots_requested(2, 2))
    assert preempted_trials(actor) == []


def test_commands_and_urgent_jobs_are_not_preempted() -> None:
    period = replace(PERIOD, checkpoints=True, urgent_priority=10)
    actor = quiet_pool(period)
    write_job(actor, 2, JobRow(preemptible=False))
    write_job(actor, 3, JobRow(priority=10))
    actor.deliver(slots_requested(2, 2), slots_requested(3, 3))
    check(actor, BEGIN_MS, period)
    assert preempted_trials(actor) == ["trial#1"]


@pytest.mark.parametrize("scheduler", ["priority", "fair_share", "round_robin"])
def test_urgent_jobs_start(scheduler: str) -> None:
    rules = SchedulerRules(scheduler)  # type: ignore[arg-type]
    actor = quiet_pool(replace(PERIOD, urgent_priority=10), rules)
    write_job(actor, 2, JobRow(priority=11))
    write_job(actor, 3, JobRow(priority=10))
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2), slots_requested(3, 3))
    assert running(actor) == [1, 3]
    assert actor.state.wait_reason == f"waits: {TEXT}"


def test_waiting_work_starts_at_the_end() -> None:
    actor = quiet_pool()
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2))
    check(actor, BEGIN_MS)
    check(actor, END_MS, NEXT)
    assert (running(actor), actor.state.wait_reason) == ([1, 2], "")
    assert settings_of(actor).quiet_ended_ms == END_MS
    assert not settings_of(actor).is_quiet


def test_any_message_after_the_end_starts_work() -> None:
    actor = quiet_pool()
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2))
    actor.now_ms = END_MS
    actor.deliver(slots_released(1, 1, "a"))
    assert running(actor) == [2]


def test_repeated_check_changes_nothing() -> None:
    actor = quiet_pool()
    check(actor, BEGIN_MS)
    before = actor.state
    check(actor, BEGIN_MS + 1)
    assert (actor.state, actor.parts_written) == (before, [])


def test_check_of_earlier_rules_changes_nothing() -> None:
    actor = quiet_pool()
    actor.deliver(QuietHoursChecked((replace(RULE, end=1),), ()))
    assert settings_of(actor).quiet_periods == (PERIOD, NEXT)


def test_wait_ends_where_the_rules_are_removed() -> None:
    settings = PoolSettings(quiet_periods=(PERIOD,), is_quiet=True)
    after = with_periods(settings, (), BEGIN_MS + 5)
    assert (after.quiet_ended_ms, after.is_quiet) == (BEGIN_MS + 5, False)


@pytest.mark.parametrize(("priority", "leaves"), [(11, True), (10, False)])
def test_job_with_several_pools_leaves_in_quiet_hours(priority: int, leaves: bool) -> None:
    actor = quiet_pool(replace(PERIOD, urgent_priority=10))
    row = JobRow(priority=priority, patience_ms=HOUR_MS)
    write_job(actor, 2, row)
    actor.now_ms = BEGIN_MS
    # More slots than the pool has, so that an urgent job waits, too.
    actor.deliver(slots_requested(2, 2, slots=9))
    ended = actor.all_messages(WaitEnded)
    assert [message.reason for message in ended] == ([TEXT] if leaves else [])
    actor.deliver(PatienceEnded(2, BEGIN_MS))


def test_following_period_extends_the_quiet_hours() -> None:
    second = QuietPeriod(END_MS, END_MS + HOUR_MS, checkpoints=True)
    settings = PoolSettings(PRIORITY, quiet_hours=(RULE,), quiet_periods=(PERIOD, second))
    actor = pool(agent_joined("a", 4), slots_requested(1, 1), settings=settings)
    actor.now_ms = BEGIN_MS
    actor.deliver(slots_requested(2, 2))
    assert actor.state.wait_reason.endswith("until 1970-01-01 10:00 UTC")
    # No work starts between the periods, although no check has come.
    actor.now_ms = END_MS
    actor.deliver(slots_requested(3, 3))
    assert (running(actor), preempted_trials(actor)) == ([1], ["trial#1"])
