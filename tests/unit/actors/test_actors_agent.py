"""The agent's sessions and what belongs on it."""

import json

import pytest

from control_plane.actors.agent import Desired, leases_of
from control_plane.actors.agent_messages import (
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    AgentForgotten,
    AllocationPlaced,
    AllocationRemoved,
)
from control_plane.actors.pool_messages import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.slots import Availability
from control_plane.actors.step import Refused
from tests.unit.actors.desk import Desk

SLOTS = ((0, "cuda", "u0", "T4"), (1, "cuda", "u1", "T4"))
ENROLLED = AgentEnrolled("a", "default", SLOTS, "1.0")


def agent(*messages: object) -> Desk:
    desk = Desk("agent#a")
    desk.tell(ENROLLED, *messages)
    return desk


def lease(desk: Desk) -> object:
    return json.loads(desk.row(leases_of("default"), "a").body)


def test_an_agent_enrols_with_its_first_session() -> None:
    desk = Desk("agent#a")
    assert desk.tell(ENROLLED) == 1
    assert desk.sent_to("pool#default") == [AgentJoined("a", 1, (0, 1))]
    assert desk.row("agents", "a").body == b"default"
    assert json.loads(desk.row("sessions", "a").body) == {"epoch": 1, "call": 0}
    assert lease(desk) == {"epoch": 1, "renewed_ms": desk.now_ms, "lost": False}


def test_a_new_session_raises_the_epoch_in_every_row_that_an_old_one_writes() -> None:
    desk = agent()
    desk.now_ms = 5_000
    assert desk.tell(ENROLLED) == 2
    assert json.loads(desk.row("sessions", "a").body)["epoch"] == 2
    assert lease(desk) == {"epoch": 2, "renewed_ms": 5_000, "lost": False}
    assert desk.sent_to("pool#default") == [AgentJoined("a", 2, (0, 1))]


def test_what_was_acknowledged_outlives_the_session() -> None:
    desk = agent()
    kept = desk.row("sessions", "a")
    desk.rows["sessions", "a"] = kept._replace(body=b'{"epoch": 1, "acked": {"4.1": {"0": 512}}}')
    desk.tell(ENROLLED)
    assert json.loads(desk.row("sessions", "a").body) == {
        "epoch": 2,
        "call": 0,
        "acked": {"4.1": {"0": 512}},
    }


def test_a_lost_agent_may_enrol_again() -> None:
    desk = agent()
    kept = desk.row(leases_of("default"), "a")
    desk.rows[leases_of("default"), "a"] = kept._replace(
        body=b'{"epoch": 1, "renewed_ms": 1, "lost": true}'
    )
    desk.tell(AgentDeclaredLost(1))
    assert desk.state.lost
    desk.tell(ENROLLED)
    assert not desk.state.lost
    assert lease(desk) == {"epoch": 2, "renewed_ms": desk.now_ms, "lost": False}


def test_what_is_placed_is_desired_until_it_is_removed() -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)), AllocationPlaced(5, 1, (1,)))
    assert desk.state.desired == (Desired(4, 1, (0,)), Desired(5, 1, (1,)))
    desk.tell(AllocationRemoved(4, 1))
    assert desk.state.desired == (Desired(5, 1, (1,)),)


def test_every_change_of_what_is_desired_has_a_revision_of_its_own() -> None:
    desk = agent()
    revisions = [desk.state.revision]
    for message in (AllocationPlaced(4, 1, (0,)), AllocationRemoved(4, 1), ENROLLED):
        desk.tell(message)
        revisions.append(desk.state.revision)
    assert revisions == [1, 2, 3, 4]


@pytest.mark.parametrize("message", [AllocationPlaced(4, 1, (0,)), AllocationRemoved(9, 1)])
def test_a_word_that_changes_nothing_has_no_revision(message: object) -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)))
    before = desk.state
    desk.tell(message)
    assert desk.state == before


def test_allocations_of_one_trial_are_kept_apart() -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)), AllocationPlaced(4, 2, (1,)))
    desk.tell(AllocationRemoved(4, 1))
    assert desk.state.desired == (Desired(4, 2, (1,)),)


def test_a_new_session_still_wants_what_ran() -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)))
    desk.tell(ENROLLED)
    assert desk.state.desired == (Desired(4, 1, (0,)),)


def test_an_agent_that_was_given_up_wants_nothing() -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)))
    desk.tell(AgentDeclaredLost(1))
    assert desk.state.desired == ()
    assert desk.state.lost
    desk.tell(ENROLLED)
    assert desk.state.desired == ()


def test_giving_up_an_older_session_changes_nothing() -> None:
    desk = agent(ENROLLED, AllocationPlaced(4, 1, (0,)))
    before = desk.state
    desk.tell(AgentDeclaredLost(1))
    assert desk.state == before


@pytest.mark.parametrize(
    "message", [AllocationPlaced(4, 1, (0,)), AllocationRemoved(4, 1), AgentDeclaredLost(1)]
)
def test_only_an_enrolment_makes_an_agent(message: object) -> None:
    desk = Desk("agent#a")
    desk.tell(message)
    assert desk.state is None


def test_an_agent_goes_on_without_a_message_it_cannot_take() -> None:
    desk = agent(AllocationPlaced(4, 1, (0,)))
    before = desk.state
    desk.bury(AllocationRemoved(4, 1))
    assert desk.state == before


def changed(
    enabled: bool = True, draining: bool = False, disabled: tuple[int, ...] = ()
) -> AgentAvailabilityChanged:
    return AgentAvailabilityChanged("a", 1, Availability(enabled, draining, disabled))


def test_the_pool_hears_what_people_disable_and_enable() -> None:
    desk = agent()
    assert desk.tell(AgentDisableRequested(drain=True)) == "a"
    assert desk.sent_to("pool#default") == [changed(enabled=False, draining=True)]
    desk.tell(AgentDisableRequested(slot=1))
    assert desk.sent_to("pool#default") == [changed(enabled=False, draining=True, disabled=(1,))]
    desk.tell(AgentEnableRequested())
    assert desk.sent_to("pool#default") == [changed(disabled=(1,))]
    desk.tell(AgentEnableRequested(slot=1))
    assert desk.sent_to("pool#default") == [changed()]
    desk.tell(AgentDisableRequested(drain=True), AgentDisableRequested(slot=0))
    assert desk.reasons == ["the agent is draining", "the agent is draining, without slot 0"]


def test_what_is_so_already_is_told_to_nobody() -> None:
    desk = agent()
    assert desk.tell(AgentEnableRequested()) == "a"
    assert desk.sent == []


def test_what_is_disabled_outlives_sessions_and_losses() -> None:
    desk = agent(AgentDisableRequested(slot=0), AgentDisableRequested(), AgentDeclaredLost(1))
    desk.tell(ENROLLED)
    expected = Availability(enabled=False, disabled=(0,))
    assert desk.sent_to("pool#default") == [AgentJoined("a", 2, (0, 1), expected)]


@pytest.mark.parametrize("slot", [None, 1])
def test_an_agent_that_is_lost_cannot_be_disabled_until_it_has_come_back(slot: int | None) -> None:
    desk = agent(AgentDeclaredLost(1))
    with pytest.raises(Refused, match="agent a is lost: wait until it has come back") as refused:
        desk.tell(AgentDisableRequested(slot=slot))
    assert refused.value.code == "conflict"
    desk.tell(ENROLLED)
    desk.tell(AgentDisableRequested(slot=slot))
    assert desk.state.availability != Availability()


def test_a_lost_agent_may_be_enabled_for_when_it_comes_back() -> None:
    desk = agent(AgentDisableRequested(), AgentDeclaredLost(1))
    desk.tell(AgentEnableRequested())
    # The pool has no such agent now: it hears of it when the agent joins.
    assert desk.sent == []
    desk.tell(ENROLLED)
    assert desk.sent_to("pool#default") == [AgentJoined("a", 2, (0, 1), Availability())]


def test_a_slot_that_the_agent_lacks_cannot_be_disabled() -> None:
    with pytest.raises(Refused, match="agent a has no slot 7; it has 0, 1"):
        agent().tell(AgentDisableRequested(slot=7))
    assert Desk("agent#b").tell(AgentDisableRequested()) is None


def holding(desk: Desk, epoch: int) -> None:
    """The agent has had a token since the session of that epoch."""
    kept = desk.row("sessions", "a")
    body = json.dumps({"epoch": epoch, "digest": "d"}).encode()
    desk.rows["token-holders", "a"] = kept._replace(body=body)
    desk.rows["tokens", "d"] = kept._replace(body=b"{}")


def found(desk: Desk) -> set[str]:
    """Where anything is found of the agent."""
    return {partition for (partition, _), row in desk.rows.items() if row.body is not None}


def test_an_agent_that_was_lost_is_forgotten_with_its_token() -> None:
    desk = agent(AgentDeclaredLost(1))
    holding(desk, 1)
    assert desk.tell(AgentForgotten(1)) is True
    assert found(desk) == {"leases#default"}
    assert desk.state.lost


def test_nobody_is_forgotten_who_is_there_or_has_come_back() -> None:
    desk = agent()
    holding(desk, 1)
    before = found(desk)
    assert desk.tell(AgentForgotten(1)) is False
    assert found(desk) == before
    desk.tell(AgentDeclaredLost(1), ENROLLED)
    # The first session is over, and what there is belongs to the second.
    assert desk.tell(AgentForgotten(1)) is True
    assert found(desk) == before


def test_an_agent_that_enrolled_without_a_token_yet_keeps_the_newer_one() -> None:
    desk = agent(AgentDeclaredLost(1))
    holding(desk, 2)
    desk.tell(AgentForgotten(1))
    assert {"token-holders", "tokens"} <= found(desk)


def test_who_was_forgotten_may_come_back_as_it_was() -> None:
    desk = agent(AgentDisableRequested(slot=0), AgentDeclaredLost(1), AgentForgotten(1))
    assert desk.tell(ENROLLED) == 2
    assert desk.row("agents", "a").body == b"default"
    assert json.loads(desk.row("sessions", "a").body) == {"epoch": 2, "call": 0}
    assert desk.state.availability == Availability(disabled=(0,))
