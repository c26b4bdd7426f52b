"""A pool's settings, at the creation and after changes, and the removal of a pool."""

import pytest

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.pool import (
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolRemoved,
    PoolSettings,
)
from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.step import CommandRefused
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import (
    PREEMPTING,
    agent_joined,
    pool,
    preempted_trials,
    running,
    slots_released,
    slots_requested,
    write_job,
)

DRAINING = PoolSettings(draining=True)


def test_default_pool_uses_fair_share_and_best_fit() -> None:
    assert pool().part("settings") == PoolSettings(SchedulerRules("fair_share", fitting="best"))
    assert pool(settings=PREEMPTING).part("settings") == PREEMPTING


def test_configuration_without_settings_keeps_the_present_settings() -> None:
    actor = pool(settings=PREEMPTING)
    assert actor.deliver(PoolConfigured("default")) == "default"
    assert actor.part("settings") == PREEMPTING
    assert actor.parts_written == []


def test_new_scheduler_decides_immediately() -> None:
    # In a fair share 1 and 2 alternate on the pool's slot; 2 is more important.
    actor = pool(
        agent_joined("a", 1), slots_requested(1, 1), slots_requested(2, 2), job2=JobRow(priority=1)
    )
    assert (running(actor), preempted_trials(actor)) == ([1], [])
    actor.deliver(PoolConfigured("default", PREEMPTING))
    assert preempted_trials(actor) == ["trial#1"]


def test_new_default_priority_applies_to_jobs_without_a_priority() -> None:
    # 42 precedes 50; later 60 follows 50.
    actor = pool(agent_joined("a", 1), slots_requested(1, 1), settings=PREEMPTING)
    write_job(actor, 2, JobRow(priority=50))
    actor.deliver(slots_requested(2, 2))
    assert preempted_trials(actor) == []
    rules = SchedulerRules("priority", preemption=True)
    actor.deliver(PoolConfigured("default", PoolSettings(rules, default_priority=60)))
    assert preempted_trials(actor) == ["trial#1"]


def test_draining_pool_starts_no_trial_and_keeps_running_allocations() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1, 1))
    actor.deliver(PoolConfigured("default", DRAINING), slots_requested(2, 2))
    assert (running(actor), preempted_trials(actor)) == ([1], [])
    assert actor.state.wait_reason == "waits: pool default is draining, so nothing starts in it"
    actor.deliver(slots_released(1, 1, "a"))
    assert running(actor) == []
    actor.deliver(PoolConfigured("default", PoolSettings()))
    assert (running(actor), actor.state.wait_reason) == ([2], "")


def test_pool_over_budget_has_a_wait_reason() -> None:
    actor = pool(
        agent_joined("a", 1), slots_requested(1, 1), settings=PoolSettings(over_budget=True)
    )
    assert running(actor) == []
    assert actor.state.wait_reason.startswith("waits: the budget of pool default is used up")


def test_pool_with_jobs_or_agents_is_not_removed() -> None:
    actor = pool(agent_joined("a", 1))
    write_job(actor, 1, JobRow())
    actor.deliver(JobChanged(1))
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(PoolRemoved())
    assert refused.value.code == "conflict"
    assert str(refused.value).startswith("resource pool default has 1 job and 1 agent:")
    actor.deliver(AgentLost("a", 1, "stopped"))
    with pytest.raises(CommandRefused):
        actor.deliver(PoolRemoved())
    write_job(actor, 1, None)
    actor.deliver(JobChanged(1))
    assert actor.deliver(PoolRemoved()) == "default"
    assert actor.row("pools", "default").revision == 0
    assert [name for name in actor.parts if "/" in name] == []


def removed_pool() -> ActorHarness:
    actor = pool()
    actor.deliver(PoolRemoved())
    return actor


def test_removed_pool_denies_requests() -> None:
    actor = removed_pool()
    actor.deliver(slots_requested(1, 1), agent_joined("a", 1), slots_released(2, 2), JobChanged(1))
    text = "the pool: resource pool default was removed"
    assert actor.messages_to("trial#1") == [AllocationExited(1, "errored", message=text)]
    assert (actor.state.queued, actor.state.agents) == (0, 0)


def test_removed_pool_may_be_removed_again_and_created_again() -> None:
    actor = removed_pool()
    assert actor.deliver(PoolRemoved()) == "default"
    actor.deliver(
        PoolConfigured("default", PREEMPTING), agent_joined("a", 1), slots_requested(1, 1)
    )
    assert actor.row("pools", "default").revision == 1
    assert running(actor) == [1]
