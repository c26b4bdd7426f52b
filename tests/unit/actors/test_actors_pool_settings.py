"""A pool's settings: given at the start, changed on a live pool, and how a pool goes."""

import pytest

from control_plane.actors.jobs import JobRow
from control_plane.actors.pool_messages import (
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolRemoved,
    PoolSettings,
)
from control_plane.actors.step import Refused
from control_plane.actors.trial_messages import AllocationExited
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.desk import Desk
from tests.unit.actors.pools import (
    PREEMPTING,
    asked_to_leave,
    joined,
    pool,
    released,
    requested,
    running,
    write_job,
)

DRAINING = PoolSettings(draining=True)


def test_a_pool_shares_fairly_and_fits_best_unless_it_is_told_otherwise() -> None:
    assert pool().part("settings") == PoolSettings(SchedulerRules("fair_share", fitting="best"))
    assert pool(settings=PREEMPTING).part("settings") == PREEMPTING


def test_a_configuration_without_settings_keeps_those_there_are() -> None:
    desk = pool(settings=PREEMPTING)
    assert desk.tell(PoolConfigured("default")) == "default"
    assert desk.part("settings") == PREEMPTING
    assert desk.parts_written == []


def test_another_scheduler_decides_at_once() -> None:
    # 1 and 2 have the slot of the pool each in their turn under fair shares; 2 is more important.
    desk = pool(joined("a", 1), requested(1, 1), requested(2, 2), job2=JobRow(priority=1))
    assert (running(desk), asked_to_leave(desk)) == ([1], [])
    desk.tell(PoolConfigured("default", PREEMPTING))
    assert asked_to_leave(desk) == ["trial#1"]


def test_another_default_priority_counts_for_the_jobs_without_one() -> None:
    # 42 is before 50; then 60 is behind it.
    desk = pool(joined("a", 1), requested(1, 1), settings=PREEMPTING)
    write_job(desk, 2, JobRow(priority=50))
    desk.tell(requested(2, 2))
    assert asked_to_leave(desk) == []
    rules = SchedulerRules("priority", preemption=True)
    desk.tell(PoolConfigured("default", PoolSettings(rules, default_priority=60)))
    assert asked_to_leave(desk) == ["trial#1"]


def test_a_draining_pool_starts_nothing_and_lets_finish_what_runs() -> None:
    desk = pool(joined("a", 2), requested(1, 1))
    desk.tell(PoolConfigured("default", DRAINING), requested(2, 2))
    assert (running(desk), asked_to_leave(desk)) == ([1], [])
    assert desk.state.waits == "waits: pool default is draining, so nothing starts in it"
    desk.tell(released(1, 1, "a"))
    assert running(desk) == []
    desk.tell(PoolConfigured("default", PoolSettings()))
    assert (running(desk), desk.state.waits) == ([2], "")


def test_a_pool_over_its_budget_says_so() -> None:
    desk = pool(joined("a", 1), requested(1, 1), settings=PoolSettings(over_budget=True))
    assert running(desk) == []
    assert desk.state.waits.startswith("waits: the budget of pool default is used up")


def test_a_pool_with_jobs_or_agents_is_not_removed() -> None:
    desk = pool(joined("a", 1))
    write_job(desk, 1, JobRow())
    desk.tell(JobChanged(1))
    with pytest.raises(Refused) as refused:
        desk.tell(PoolRemoved())
    assert refused.value.code == "conflict"
    assert str(refused.value).startswith("resource pool default has 1 jobs and 1 agents")
    desk.tell(AgentLost("a", 1, "stopped"))
    with pytest.raises(Refused):
        desk.tell(PoolRemoved())
    write_job(desk, 1, None)
    desk.tell(JobChanged(1))
    assert desk.tell(PoolRemoved()) == "default"
    assert desk.row("pools", "default").revision == 0
    assert [name for name in desk.parts if "/" in name] == []


def removed() -> Desk:
    desk = pool()
    desk.tell(PoolRemoved())
    return desk


def test_whoever_asks_a_removed_pool_for_slots_learns_that_there_are_none() -> None:
    desk = removed()
    desk.tell(requested(1, 1), joined("a", 1), released(2, 2), JobChanged(1))
    text = "the pool: resource pool default was removed"
    assert desk.sent_to("trial#1") == [AllocationExited(1, "errored", message=text)]
    assert (desk.state.queued, desk.state.agents) == (0, 0)


def test_a_removed_pool_may_be_removed_again_and_come_back() -> None:
    desk = removed()
    assert desk.tell(PoolRemoved()) == "default"
    desk.tell(PoolConfigured("default", PREEMPTING), joined("a", 1), requested(1, 1))
    assert desk.row("pools", "default").revision == 1
    assert running(desk) == [1]
