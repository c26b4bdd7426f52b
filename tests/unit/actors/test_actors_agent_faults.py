"""Faults of an agent's machine close slots, also slots that users have enabled."""

from __future__ import annotations

import pytest

from control_plane.actors.agent.machine_faults import (
    FAULTS_MAX,
    MachineFault,
    restrict,
    update_faults,
)
from control_plane.actors.messages.agent import (
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    FaultsReported,
)
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined
from control_plane.actors.records import OPEN, Availability
from tests.unit.actors.test_actors_agent import ENROLLED, KIND, SLOTS, agent

POOL = "pool#default"
BROKEN = FaultsReported(1, ((1, "Xid 79"),))
FULL = FaultsReported(1, ((None, "the disk is full"),))


def availability_change(availability: Availability, epoch: int = 1) -> list[object]:
    return [AgentAvailabilityChanged("a", epoch, availability)]


@pytest.mark.parametrize(
    ("report", "availability"),
    [
        (BROKEN, Availability(disabled=(1,))),
        (FULL, Availability(enabled=False, draining=True, reopens=True)),
    ],
)
def test_fault_closes_its_place_and_its_end_opens_it(
    report: FaultsReported, availability: Availability
) -> None:
    actor = agent()
    assert actor.deliver(report) == "a"
    assert actor.messages_to(POOL) == availability_change(availability)
    actor.deliver(report)
    assert actor.messages_to(POOL) == []
    actor.deliver(FaultsReported(1))
    assert actor.messages_to(POOL) == availability_change(OPEN)


def test_users_settings_and_faults_are_separate() -> None:
    actor = agent(AgentDisableRequested(0), BROKEN)
    assert actor.state.effective_availability == Availability(disabled=(0, 1))
    # Enabling a faulty slot does not open the slot.
    actor.deliver(AgentEnableRequested(1))
    assert actor.messages_to(POOL) == []
    actor.deliver(FaultsReported(1))
    assert actor.messages_to(POOL) == availability_change(Availability(disabled=(0,)))


def test_full_disk_leaves_a_disabled_agent_disabled() -> None:
    actor = agent(AgentDisableRequested())
    actor.deliver(FULL)
    assert actor.messages_to(POOL) == []
    assert actor.state.effective_availability == Availability(enabled=False)


@pytest.mark.parametrize("before", [AgentDeclaredLost(1), ENROLLED])
def test_report_of_an_ended_session_changes_nothing(before: object) -> None:
    actor = agent(before)
    actor.deliver(BROKEN)
    assert actor.state.faults == ()


@pytest.mark.parametrize(("version", "is_closed"), [("1.0", True), ("0.9", False)])
def test_new_session_of_the_same_version_keeps_faults(version: str, *, is_closed: bool) -> None:
    actor = agent(BROKEN)
    actor.deliver(AgentEnrolled("a", "default", SLOTS, version))
    availability = Availability(disabled=(1,)) if is_closed else OPEN
    assert actor.messages_to(POOL) == [AgentJoined("a", 2, (0, 1), availability, kind=KIND)]


def test_fault_keeps_its_first_time() -> None:
    first = update_faults((), [(0, "x")], 5)
    assert update_faults(first, [(0, "x"), (1, "y")], 9) == (
        MachineFault(0, "x", 5),
        MachineFault(1, "y", 9),
    )


def test_many_faults_close_the_machine() -> None:
    reported = [(slot, "x") for slot in range(FAULTS_MAX + 1)]
    [fault] = update_faults((), reported, 5)
    assert (fault.slot, fault.reason) == (None, "17 faults, at first: x")
    assert restrict(OPEN, [fault]) == Availability(enabled=False, draining=True, reopens=True)
