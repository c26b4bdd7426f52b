"""Requests that exclude agents in a pool: storage, starts, and counts of the job."""

from dataclasses import replace

from control_plane.actors.messages.pool import SlotsRequested
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    agents,
    group_of,
    pool,
    running,
    slots_released,
    slots_requested,
)


def excluding(trial_id: int, group: int, *names: str, slots: int = 2) -> SlotsRequested:
    return replace(slots_requested(trial_id, group, slots), excluded_agents=names)


def test_request_waits_for_another_agent() -> None:
    actor = pool(agent_joined("a", 2))
    actor.deliver(excluding(1, 7, "a"))
    assert running(actor) == []
    assert group_of(actor, 7).excluding == 1
    assert actor.state.wait_reason == "a log policy excludes the agents that could run it: a"
    actor.deliver(agent_joined("b", 2))
    assert agents(actor) == {"a": {}, "b": {"1.1": (0, 1)}}
    assert group_of(actor, 7).excluding == 0


def test_excluded_agent_runs_other_requests() -> None:
    actor = pool(agent_joined("a", 2))
    actor.deliver(excluding(1, 7, "a"), slots_requested(2, 7, 2))
    assert running(actor) == [2]
    assert (group_of(actor, 7).excluding, group_of(actor, 7).pending) == (1, {2: 1})


def test_withdrawn_request_is_not_counted() -> None:
    actor = pool(agent_joined("a", 2))
    actor.deliver(excluding(1, 7, "a"), excluding(2, 7, "a"))
    actor.deliver(slots_released(1, 7))
    assert (group_of(actor, 7).excluding, group_of(actor, 7).pending) == (1, {2: 1})
    actor.deliver(slots_released(2, 7), slots_released(2, 7))
    assert (group_of(actor, 7).excluding, group_of(actor, 7).pending) == (0, {})


def test_repeated_request_counts_once() -> None:
    actor = pool(agent_joined("a", 2))
    actor.deliver(excluding(1, 7, "a"), excluding(1, 7, "a"))
    assert (group_of(actor, 7).excluding, actor.state.queued) == (1, 1)


def test_gang_avoids_the_excluded_agent() -> None:
    actor: ActorHarness = pool(*(agent_joined(name, 2) for name in "abc"))
    actor.deliver(excluding(1, 7, "b", slots=4))
    assert sorted(name for name, held in agents(actor).items() if held) == ["a", "c"]
