"""The use of an agent's machine by people: no new work, departures, and the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.agent.occupancy import Occupancy
from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.agent import (
    AgentDeclaredLost,
    AgentDisableRequested,
    AgentEnableRequested,
    AgentEnrolled,
    FaultsReported,
)
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    PoolConfigured,
    PoolSettings,
)
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.records import OPEN, Availability
from control_plane.scheduling.model import SchedulerRules
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    agents,
    pool,
    preempted_trials,
    running,
    slots_of,
    slots_released,
    slots_requested,
    write_job,
)
from tests.unit.actors.test_actors_agent import KIND, SLOTS, agent

POOL = "pool#default"
LEAVE = Availability(enabled=False, draining=True, reopens=True, checkpoints=True)
FINISH = Availability(enabled=False, draining=True, reopens=True)
USED = FaultsReported(1, (), ("somebody works here", True))
FREE = FaultsReported(1)


def availability_change(availability: Availability) -> list[object]:
    return [AgentAvailabilityChanged("a", 1, availability)]


@pytest.mark.parametrize(("checkpoints", "expected"), [(True, LEAVE), (False, FINISH)])
def test_used_machine_takes_no_work_until_the_end(
    checkpoints: bool, expected: Availability
) -> None:
    actor = agent()
    actor.deliver(FaultsReported(1, (), ("x", checkpoints)))
    assert actor.messages_to(POOL) == availability_change(expected)
    actor.deliver(FREE)
    assert actor.messages_to(POOL) == availability_change(OPEN)
    assert actor.state.occupancy is None


def test_repeated_report_changes_nothing() -> None:
    actor = agent(USED)
    actor.now_ms += 1000
    actor.deliver(USED)
    assert actor.messages_to(POOL) == []
    # Another reason keeps the beginning.
    actor.deliver(FaultsReported(1, (), ("hours of people", True)))
    assert actor.messages_to(POOL) == []
    assert actor.state.occupancy == Occupancy("hours of people", actor.now_ms - 1000, True)


def test_report_of_an_earlier_session_is_ignored() -> None:
    actor = agent(USED)
    actor.deliver(AgentEnrolled("a", "default", SLOTS, "1.0", occupancy=("x", False)))
    actor.deliver(FREE)
    assert actor.state.occupancy is not None


def test_enrolment_of_a_used_machine_opens_no_slot() -> None:
    actor = ActorHarness("agent#a")
    actor.deliver(AgentEnrolled("a", "default", SLOTS, "1.0", occupancy=("x", True)))
    assert actor.messages_to(POOL) == [AgentJoined("a", 1, (0, 1), LEAVE, kind=KIND)]
    # The session of an older agent reports no use.
    actor.deliver(AgentEnrolled("a", "default", SLOTS, "0.9"))
    assert actor.messages_to(POOL) == [AgentJoined("a", 2, (0, 1), kind=KIND)]


def test_users_setting_is_not_loosened() -> None:
    actor = agent(AgentDisableRequested(), USED)
    assert actor.state.effective_availability == Availability(enabled=False)
    actor.deliver(AgentEnableRequested())
    assert actor.messages_to(POOL) == availability_change(LEAVE)
    drained = agent(AgentDisableRequested(drain=True), USED)
    expected = Availability(enabled=False, draining=True, checkpoints=True)
    assert drained.state.effective_availability == expected


def test_lost_agent_reports_nothing() -> None:
    actor = agent(AgentDeclaredLost(1), USED)
    assert actor.state.occupancy is None


def change_availability(
    actor: ActorHarness, availability: Availability = LEAVE, name: str = "a"
) -> None:
    actor.deliver(AgentAvailabilityChanged(name, 1, availability))


def test_trials_leave_with_a_checkpoint() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1, 1), slots_requested(2, 2))
    change_availability(actor)
    reason = "people use the machine of agent a"
    assert actor.messages_to("trial#1") == [PreemptionRequested(1, reason)]
    assert actor.messages_to("trial#2") == [PreemptionRequested(1, reason)]
    # The trials are asked once.
    actor.deliver(slots_requested(3, 3))
    assert (preempted_trials(actor), running(actor)) == ([], [1, 2])
    actor.deliver(slots_released(1, 1, "a"), slots_released(2, 2, "a"))
    assert running(actor) == []
    change_availability(actor, OPEN)
    assert running(actor) == [3]


def test_trials_finish_by_setting() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1))
    change_availability(actor, FINISH)
    assert (preempted_trials(actor), running(actor)) == ([], [1])
    # People may change the rule while they use the machine.
    change_availability(actor, LEAVE)
    assert preempted_trials(actor) == ["trial#1"]


def test_commands_finish() -> None:
    actor = pool(agent_joined("a", 2))
    write_job(actor, 1, JobRow(preemptible=False))
    actor.deliver(slots_requested(1, 1), slots_requested(2, 2))
    change_availability(actor)
    assert preempted_trials(actor) == ["trial#2"]


def test_gang_with_a_used_machine_leaves_all_machines() -> None:
    actor = pool(agent_joined("a", 1), agent_joined("b", 1), slots_requested(1, 1, slots=2))
    assert set(agents(actor)) == {"a", "b"}
    last = [name for name in ("a", "b") if slots_of(actor, name).parts["1.1"].rank == 1]
    change_availability(actor, name=last[0])
    assert preempted_trials(actor) == ["trial#1"]
    assert all(slots_of(actor, name).parts["1.1"].leaving for name in ("a", "b"))


def test_other_machines_are_not_left() -> None:
    actor = pool(agent_joined("a", 1), agent_joined("b", 1))
    actor.deliver(slots_requested(1, 1), slots_requested(2, 2))
    (left,) = agents(actor)["b"]
    change_availability(actor, name="b")
    assert preempted_trials(actor) == [f"trial#{left.split('.')[0]}"]


@pytest.mark.parametrize("queued", [False, True])
def test_trials_leave_in_a_draining_pool(*, queued: bool) -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1))
    actor.deliver(PoolConfigured("default", PoolSettings(draining=True)))
    if queued:
        actor.deliver(slots_requested(2, 2))
    change_availability(actor)
    assert preempted_trials(actor) == ["trial#1"]


def test_new_session_of_a_used_machine_asks_trials_to_leave() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1, 1))
    actor.deliver(agent_joined("a", 1, epoch=2, availability=LEAVE))
    assert preempted_trials(actor) == ["trial#1"]


def test_many_trials_leave_in_several_commits() -> None:
    names = [f"agent{number:03d}" for number in range(150)]
    requests = [slots_requested(number, number) for number in range(1, 151)]
    actor = pool(*(agent_joined(name, 1) for name in names), *requests)
    while messages := actor.messages_to(POOL):
        actor.deliver(*messages)
    assert len(running(actor)) == 150
    # All machines at once, for example at the begin of the hours of people.
    actor.deliver(*(AgentAvailabilityChanged(name, 1, LEAVE) for name in names))
    asked = preempted_trials(actor)
    assert 0 < len(asked) < 150
    assert len({*asked, *later_preempted(actor)}) == 150


def later_preempted(actor: ActorHarness) -> list[str]:
    """Return the trials that the pool preempts in the commits that follow."""
    preempted: list[str] = []
    while messages := actor.messages_to(POOL):
        actor.deliver(*messages)
        preempted += preempted_trials(actor)
    return preempted


def test_stored_availability_keeps_the_departures() -> None:
    actor = pool(agent_joined("a", 1))
    change_availability(actor)
    assert slots_of(actor, "a").availability == LEAVE
    change_availability(actor, FINISH)
    assert slots_of(actor, "a").availability == FINISH
    drained = Availability(enabled=False, draining=True, checkpoints=True)
    change_availability(actor, drained)
    assert slots_of(actor, "a").availability == drained


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.sampled_from("ab"), st.sampled_from([LEAVE, FINISH])),
        st.tuples(st.just("free"), st.sampled_from("ab"), st.none()),
        st.tuples(st.just("submit"), st.integers(0, 3), st.none()),
        st.tuples(st.just("end"), st.integers(0, 20), st.none()),
    ),
    max_size=30,
)


class TwoMachines:
    """A pool with two machines, and the machines that people use."""

    def __init__(self, kind: str) -> None:
        rules = PoolSettings(SchedulerRules(kind))  # type: ignore[arg-type]
        self.actor = pool(agent_joined("a", 2), agent_joined("b", 3), settings=rules)
        self.used: dict[str, Availability] = {}
        self.submitted = 0

    def apply(self, name: str, value: Any, availability: Availability | None) -> None:
        """Apply a step of STEPS."""
        if name == "use" and availability is not None:
            self.used[value] = availability
            change_availability(self.actor, availability, value)
        elif name == "free":
            self.used.pop(value, None)
            change_availability(self.actor, OPEN, value)
        elif name == "submit":
            self.submitted += 1
            self.actor.deliver(slots_requested(self.submitted, self.submitted, slots=value))
        elif trials := running(self.actor):
            self.end(trials[value % len(trials)])

    def end(self, trial: int) -> None:
        """Release the slots of a trial."""
        places = [name for name, held in self.held_allocations().items() if f"{trial}.1" in held]
        self.actor.deliver(slots_released(trial, trial, *places))

    def held_allocations(self) -> dict[str, set[str]]:
        """Return the allocations on each machine."""
        return {"a": set(), "b": set()} | {x: set(parts) for x, parts in agents(self.actor).items()}


@given(steps=STEPS, kind=st.sampled_from(["priority", "fair_share", "round_robin"]))
@settings(max_examples=60, deadline=None)
def test_used_machines_start_no_work_and_lose_it(steps: list[Any], kind: str) -> None:
    """After each step: no start on a used machine, and all trials there are asked to leave."""
    machines = TwoMachines(kind)
    for step in steps:
        before = machines.held_allocations()
        machines.apply(*step)
        for name, rule in machines.used.items():
            assert machines.held_allocations()[name] <= before[name]
            parts = slots_of(machines.actor, name).parts.values()
            assert rule is FINISH or all(part.leaving for part in parts)
    for name in "ab":
        machines.apply("free", name, None)
    for _ in range(machines.submitted):
        for trial in running(machines.actor):
            machines.end(trial)
    # All work has run in the end.
    assert machines.actor.state.queued == 0
