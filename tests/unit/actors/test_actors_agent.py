"""The agent's sessions and desired allocations."""

import json
from dataclasses import replace

import pytest

from control_plane.actors.agent.actor import (
    TUNNELS_MAX,
    DesiredAllocation,
    OpenTunnel,
    leases_partition,
)
from control_plane.actors.messages.agent import (
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    AgentForgotten,
    AllocationPlaced,
    AllocationRemoved,
    TunnelClosed,
    TunnelOpened,
)
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.records import Availability
from control_plane.actors.step import CommandRefused
from control_plane.scheduling.agent_needs import AgentDevice, AgentKind
from tests.unit.actors.actor_harness import ActorHarness

SLOTS = ((0, "cuda", "u0", "T4"), (1, "cuda", "u1", "T4"))
KIND = AgentKind((AgentDevice("cuda", "T4"),))
ENROLLED = AgentEnrolled("a", "default", SLOTS, "1.0")


def agent(*messages: object) -> ActorHarness:
    actor = ActorHarness("agent#a")
    actor.deliver(ENROLLED, *messages)
    return actor


def lease(actor: ActorHarness) -> object:
    return json.loads(actor.row(leases_partition("default"), "a").body)


def test_first_session_creates_the_agent() -> None:
    actor = ActorHarness("agent#a")
    assert actor.deliver(ENROLLED) == 1
    assert actor.messages_to("pool#default") == [AgentJoined("a", 1, (0, 1), kind=KIND)]
    assert actor.row("agents", "a").body == b"default"
    assert json.loads(actor.row("sessions", "a").body) == {"epoch": 1, "call": 0}
    assert lease(actor) == {"epoch": 1, "renewed_ms": actor.now_ms, "lost": False}


def test_new_session_raises_the_epoch_in_session_and_lease_rows() -> None:
    actor = agent()
    actor.now_ms = 5_000
    assert actor.deliver(ENROLLED) == 2
    assert json.loads(actor.row("sessions", "a").body)["epoch"] == 2
    assert lease(actor) == {"epoch": 2, "renewed_ms": 5_000, "lost": False}
    assert actor.messages_to("pool#default") == [AgentJoined("a", 2, (0, 1), kind=KIND)]


def test_acknowledged_reports_survive_a_new_session() -> None:
    actor = agent()
    kept = actor.row("sessions", "a")
    actor.rows["sessions", "a"] = kept._replace(body=b'{"epoch": 1, "acked": {"4.1": {"0": 512}}}')
    actor.deliver(ENROLLED)
    assert json.loads(actor.row("sessions", "a").body) == {
        "epoch": 2,
        "call": 0,
        "acked": {"4.1": {"0": 512}},
    }


FIRST = replace(ENROLLED, installation="state-1/aa")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FIRST, FIRST),
        (ENROLLED, FIRST),
        (FIRST, ENROLLED),
        # A restored state has another incarnation, and its agents may have new folders.
        (FIRST, replace(FIRST, installation="state-2/bb")),
    ],
)
def test_agent_of_the_same_installation_enrols_again(
    before: AgentEnrolled, after: AgentEnrolled
) -> None:
    actor = ActorHarness("agent#a")
    actor.deliver(before)
    assert actor.deliver(after) == 2


def test_second_installation_waits_until_the_agent_is_lost() -> None:
    actor = ActorHarness("agent#a")
    actor.deliver(FIRST)
    second = replace(FIRST, installation="state-1/bb")
    with pytest.raises(CommandRefused, match="another agent is connected as a") as refused:
        actor.deliver(second)
    assert refused.value.code == "conflict"
    assert lease(actor) == {"epoch": 1, "renewed_ms": actor.now_ms, "lost": False}
    actor.deliver(AgentDeclaredLost(1))
    assert actor.deliver(second) == 2
    with pytest.raises(CommandRefused):
        actor.deliver(FIRST)


def test_lost_agent_may_enrol_again() -> None:
    actor = agent()
    kept = actor.row(leases_partition("default"), "a")
    actor.rows[leases_partition("default"), "a"] = kept._replace(
        body=b'{"epoch": 1, "renewed_ms": 1, "lost": true}'
    )
    actor.deliver(AgentDeclaredLost(1))
    assert actor.state.lost
    actor.deliver(ENROLLED)
    assert not actor.state.lost
    assert lease(actor) == {"epoch": 2, "renewed_ms": actor.now_ms, "lost": False}


def test_placed_allocation_is_desired_until_removal() -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)), AllocationPlaced(5, 1, (1,)))
    assert actor.state.desired == (DesiredAllocation(4, 1, (0,)), DesiredAllocation(5, 1, (1,)))
    actor.deliver(AllocationRemoved(4, 1))
    assert actor.state.desired == (DesiredAllocation(5, 1, (1,)),)


def test_every_change_of_desired_allocations_increases_the_revision() -> None:
    actor = agent()
    revisions = [actor.state.revision]
    for message in (AllocationPlaced(4, 1, (0,)), AllocationRemoved(4, 1), ENROLLED):
        actor.deliver(message)
        revisions.append(actor.state.revision)
    assert revisions == [1, 2, 3, 4]


@pytest.mark.parametrize("message", [AllocationPlaced(4, 1, (0,)), AllocationRemoved(9, 1)])
def test_message_without_a_change_keeps_the_revision(message: object) -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)))
    before = actor.state
    actor.deliver(message)
    assert actor.state == before


def test_allocations_of_the_same_trial_are_separate() -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)), AllocationPlaced(4, 2, (1,)))
    actor.deliver(AllocationRemoved(4, 1))
    assert actor.state.desired == (DesiredAllocation(4, 2, (1,)),)


def test_new_session_keeps_desired_allocations() -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)))
    actor.deliver(ENROLLED)
    assert actor.state.desired == (DesiredAllocation(4, 1, (0,)),)


def test_lost_agent_has_no_desired_allocations() -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)))
    actor.deliver(AgentDeclaredLost(1))
    assert actor.state.desired == ()
    assert actor.state.lost
    actor.deliver(ENROLLED)
    assert actor.state.desired == ()


def test_loss_of_an_older_session_changes_no_state() -> None:
    actor = agent(ENROLLED, AllocationPlaced(4, 1, (0,)))
    before = actor.state
    actor.deliver(AgentDeclaredLost(1))
    assert actor.state == before


@pytest.mark.parametrize(
    "message", [AllocationPlaced(4, 1, (0,)), AllocationRemoved(4, 1), AgentDeclaredLost(1)]
)
def test_only_an_enrolment_creates_an_agent(message: object) -> None:
    actor = ActorHarness("agent#a")
    actor.deliver(message)
    assert actor.state is None


def test_agent_drops_a_message_that_it_cannot_process() -> None:
    actor = agent(AllocationPlaced(4, 1, (0,)))
    before = actor.state
    actor.deliver_dead_letter(AllocationRemoved(4, 1))
    assert actor.state == before


def availability_changed(
    enabled: bool = True, draining: bool = False, disabled: tuple[int, ...] = ()
) -> AgentAvailabilityChanged:
    return AgentAvailabilityChanged("a", 1, Availability(enabled, draining, disabled))


def test_pool_is_notified_of_disabled_and_enabled_agents() -> None:
    actor = agent()
    assert actor.deliver(AgentDisableRequested(drain=True)) == "a"
    assert actor.messages_to("pool#default") == [availability_changed(enabled=False, draining=True)]
    actor.deliver(AgentDisableRequested(slot=1))
    assert actor.messages_to("pool#default") == [
        availability_changed(enabled=False, draining=True, disabled=(1,))
    ]
    actor.deliver(AgentEnableRequested())
    assert actor.messages_to("pool#default") == [availability_changed(disabled=(1,))]
    actor.deliver(AgentEnableRequested(slot=1))
    assert actor.messages_to("pool#default") == [availability_changed()]
    actor.deliver(AgentDisableRequested(drain=True), AgentDisableRequested(slot=0))
    assert actor.reasons == ["the agent is draining", "the agent is draining, without slot 0"]


def test_unchanged_availability_sends_no_message() -> None:
    actor = agent()
    assert actor.deliver(AgentEnableRequested()) == "a"
    assert actor.sent == []


def test_availability_survives_sessions_and_losses() -> None:
    actor = agent(AgentDisableRequested(slot=0), AgentDisableRequested(), AgentDeclaredLost(1))
    actor.deliver(ENROLLED)
    expected = Availability(enabled=False, disabled=(0,))
    assert actor.messages_to("pool#default") == [AgentJoined("a", 2, (0, 1), expected, kind=KIND)]


@pytest.mark.parametrize("slot", [None, 1])
def test_lost_agent_cannot_be_disabled(slot: int | None) -> None:
    actor = agent(AgentDeclaredLost(1))
    with pytest.raises(
        CommandRefused, match="agent a is lost: wait until it reconnects"
    ) as refused:
        actor.deliver(AgentDisableRequested(slot=slot))
    assert refused.value.code == "conflict"
    actor.deliver(ENROLLED)
    actor.deliver(AgentDisableRequested(slot=slot))
    assert actor.state.availability != Availability()


def test_lost_agent_may_be_enabled() -> None:
    actor = agent(AgentDisableRequested(), AgentDeclaredLost(1))
    actor.deliver(AgentEnableRequested())
    # The pool removed the lost agent, and gets the availability when the agent joins again.
    assert actor.sent == []
    actor.deliver(ENROLLED)
    assert actor.messages_to("pool#default") == [AgentJoined("a", 2, (0, 1), kind=KIND)]


def test_unknown_slot_cannot_be_disabled() -> None:
    with pytest.raises(CommandRefused, match="agent a has no slot 7; it has 0, 1"):
        agent().deliver(AgentDisableRequested(slot=7))
    assert ActorHarness("agent#b").deliver(AgentDisableRequested()) is None


def add_token(actor: ActorHarness, epoch: int) -> None:
    """Add the rows of a token that the agent got in the session of that epoch."""
    kept = actor.row("sessions", "a")
    body = json.dumps({"epoch": epoch, "digest": "d"}).encode()
    actor.rows["token-holders", "a"] = kept._replace(body=body)
    actor.rows["tokens", "d"] = kept._replace(body=b"{}")


def partitions_with_rows(actor: ActorHarness) -> set[str]:
    """Return the partitions with a row of the agent."""
    return {partition for (partition, _), row in actor.rows.items() if row.body is not None}


def test_forgotten_agent_loses_the_token_and_all_rows() -> None:
    actor = agent(AgentDeclaredLost(1))
    add_token(actor, 1)
    assert actor.deliver(AgentForgotten(1)) is True
    assert partitions_with_rows(actor) == {"leases#default"}
    assert actor.state.lost


def test_present_agent_is_not_forgotten() -> None:
    actor = agent()
    add_token(actor, 1)
    before = partitions_with_rows(actor)
    assert actor.deliver(AgentForgotten(1)) is False
    assert partitions_with_rows(actor) == before
    actor.deliver(AgentDeclaredLost(1), ENROLLED)
    # The first session is over, and the rows belong to the second session.
    assert actor.deliver(AgentForgotten(1)) is True
    assert partitions_with_rows(actor) == before


def test_token_of_a_newer_session_is_not_removed() -> None:
    actor = agent(AgentDeclaredLost(1))
    add_token(actor, 2)
    actor.deliver(AgentForgotten(1))
    assert {"token-holders", "tokens"} <= partitions_with_rows(actor)


def test_forgotten_agent_may_enrol_again_with_the_old_availability() -> None:
    actor = agent(AgentDisableRequested(slot=0), AgentDeclaredLost(1), AgentForgotten(1))
    assert actor.deliver(ENROLLED) == 2
    assert actor.row("agents", "a").body == b"default"
    assert json.loads(actor.row("sessions", "a").body) == {"epoch": 2, "call": 0}
    assert actor.state.availability == Availability(disabled=(0,))


def test_end_of_a_machine_is_kept_until_the_agent_is_enabled() -> None:
    actor = agent(AgentDisableRequested(drain=True, ends_ms=9_000))
    assert (actor.state.ends_ms, actor.state.availability.draining) == (9_000, True)
    # A command for a slot and a drain without an end keep the announced end.
    actor.deliver(AgentEnableRequested(slot=0), AgentDisableRequested(drain=True), ENROLLED)
    assert actor.state.ends_ms == 9_000
    actor.deliver(AgentDisableRequested(drain=True, ends_ms=8_000))
    assert actor.state.ends_ms == 8_000
    actor.deliver(AgentEnableRequested())
    assert actor.state.ends_ms is None


PLACED = AllocationPlaced(4, 1, (0,))


def test_tunnels_open_repeat_and_close() -> None:
    actor = agent(PLACED)
    opened = TunnelOpened("t", 4, 1)
    assert actor.deliver(opened) == "t"
    assert actor.deliver(opened) == "t"
    assert actor.state.tunnels == (OpenTunnel("t", 4, 1),)
    assert actor.deliver(TunnelClosed("t")) == "t"
    assert actor.deliver(TunnelClosed("t")) == "t"
    assert actor.state.tunnels == ()


@pytest.mark.parametrize("opened", [TunnelOpened("t", 4, 2), TunnelOpened("t", 5, 1)])
def test_tunnel_to_another_epoch_or_trial_is_refused(opened: TunnelOpened) -> None:
    with pytest.raises(CommandRefused, match="does not run on a") as refused:
        agent(PLACED).deliver(opened)
    assert refused.value.code == "conflict"


def test_end_of_the_allocation_closes_its_tunnels() -> None:
    actor = agent(PLACED, AllocationPlaced(5, 1, (1,)))
    actor.deliver(TunnelOpened("t", 4, 1), TunnelOpened("u", 5, 1))
    actor.deliver(AllocationRemoved(4, 1))
    assert actor.state.tunnels == (OpenTunnel("u", 5, 1),)
    actor.deliver(AgentDeclaredLost(1))
    assert actor.state.tunnels == ()


def test_open_tunnels_of_an_agent_are_limited() -> None:
    actor = agent(PLACED)
    for number in range(TUNNELS_MAX):
        actor.deliver(TunnelOpened(f"t{number}", 4, 1))
    with pytest.raises(CommandRefused, match="64 tunnels"):
        actor.deliver(TunnelOpened("another", 4, 1))


def test_tunnels_survive_a_new_session() -> None:
    actor = agent(PLACED, TunnelOpened("t", 4, 1))
    actor.deliver(ENROLLED)
    assert actor.state.tunnels == (OpenTunnel("t", 4, 1),)
