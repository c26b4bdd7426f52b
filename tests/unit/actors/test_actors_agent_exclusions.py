"""Exclusions of an agent's machine from its pool, with an end."""

from __future__ import annotations

from control_plane.actors.agent.exclusions import EXCLUSIONS_MAX, Exclusion, add_exclusion
from control_plane.actors.messages.agent import (
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    AgentExcluded,
    ExclusionEnded,
    FaultsReported,
)
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import SetTimer
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.test_actors_agent import ENROLLED, KIND, SLOTS, agent

POOL = "pool#default"
CLOSED = Availability(enabled=False, draining=True, reopens=True)


def excluded_agent(*, duration_ms: int = 1000) -> ActorHarness:
    actor = agent()
    actor.deliver(AgentExcluded("the link is bad", actor.now_ms + duration_ms))
    return actor


def availability_change(availability: Availability) -> list[object]:
    return [AgentAvailabilityChanged("a", 1, availability)]


def test_excluded_machine_takes_no_work_until_the_end() -> None:
    actor = excluded_agent()
    assert actor.messages_to(POOL) == availability_change(CLOSED)
    assert actor.timers == [SetTimer(actor.now_ms + 1000, ExclusionEnded())]
    # A timer that comes too early changes nothing.
    actor.deliver(ExclusionEnded())
    assert actor.messages_to(POOL) == []
    actor.now_ms += 1000
    actor.deliver(ExclusionEnded())
    assert actor.messages_to(POOL) == availability_change(OPEN)
    assert actor.state.exclusions == ()


def test_exclusion_whose_end_has_passed_is_not_added() -> None:
    actor = excluded_agent(duration_ms=0)
    assert (actor.state.exclusions, actor.sent, actor.timers) == ((), [], [])


def test_enabling_the_agent_ends_exclusions() -> None:
    actor = excluded_agent()
    actor.deliver(AgentEnableRequested(0))
    assert actor.messages_to(POOL) == []
    assert actor.deliver(AgentEnableRequested()) == "a"
    assert actor.messages_to(POOL) == availability_change(OPEN)
    actor.now_ms += 1000
    actor.deliver(ExclusionEnded())
    assert actor.messages_to(POOL) == []


def test_exclusion_loosens_no_setting_of_users() -> None:
    actor = agent(AgentDisableRequested())
    actor.deliver(AgentExcluded("x", actor.now_ms + 1000))
    assert actor.messages_to(POOL) == []
    actor.deliver(AgentEnableRequested())
    assert actor.messages_to(POOL) == availability_change(OPEN)


def test_repeated_exclusion_keeps_the_beginning_and_the_later_end() -> None:
    first = add_exclusion((), Exclusion("x", 5, 10))
    assert add_exclusion(first, Exclusion("x", 7, 9)) == (Exclusion("x", 5, 10),)
    assert add_exclusion(first, Exclusion("x", 7, 12)) == (Exclusion("x", 5, 12),)


def test_exclusions_of_an_agent_are_bounded() -> None:
    listed: tuple[Exclusion, ...] = ()
    for number in range(EXCLUSIONS_MAX + 2):
        listed = add_exclusion(listed, Exclusion(str(number), 0, number))
    # The exclusions that end first were replaced.
    assert [x.until_ms for x in listed] == list(range(2, EXCLUSIONS_MAX + 2))


def test_new_session_keeps_exclusions_that_have_not_ended() -> None:
    actor = excluded_agent()
    actor.deliver(AgentDeclaredLost(1), AgentEnrolled("a", "default", SLOTS, "9"))
    assert actor.messages_to(POOL) == [AgentJoined("a", 2, (0, 1), CLOSED, kind=KIND)]
    actor.now_ms += 1000
    actor.deliver(ENROLLED)
    assert actor.messages_to(POOL) == [AgentJoined("a", 3, (0, 1), OPEN, kind=KIND)]


def test_fault_and_exclusion_end_separately() -> None:
    actor = excluded_agent()
    actor.deliver(FaultsReported(1, ((None, "the disk is full"),)))
    assert actor.messages_to(POOL) == []
    actor.now_ms += 1000
    actor.deliver(ExclusionEnded())
    assert actor.messages_to(POOL) == []
    actor.deliver(FaultsReported(1))
    assert actor.messages_to(POOL) == availability_change(OPEN)
