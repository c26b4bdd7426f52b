"""Kinds of agents in a pool: numbers, storage, and starts on agents that meet the job's needs."""

from dataclasses import replace

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    PoolRemoved,
)
from control_plane.actors.pool.agent_kinds import AGENT_KINDS, KINDS_MAX, AgentKinds
from control_plane.actors.records import Availability
from control_plane.actors.step import StepContext
from control_plane.scheduling.agent_needs import AgentDevice, AgentKind
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    agents,
    pool,
    running,
    slots_of,
    slots_requested,
)

H100 = AgentKind((AgentDevice("cuda", "NVIDIA H100 80GB HBM3", 81559),))
T4 = AgentKind((AgentDevice("cuda", "Tesla T4", 15360),))
ADA = AgentKind((AgentDevice("cuda", "Tesla T4", 15360),), "1001:1001")


def agent_of(agent: str, slots: int, kind: AgentKind | None, epoch: int = 1) -> AgentJoined:
    return replace(agent_joined(agent, slots, epoch), kind=kind)


def kinds_of(actor: ActorHarness) -> tuple[AgentKind | None, ...]:
    part = StepContext(actor.address, 0, actor).part(AGENT_KINDS, AgentKinds)
    return part.kinds if part else ()


def numbers(actor: ActorHarness, names: str) -> list[int]:
    return [slots_of(actor, name).kind for name in names]


def test_agents_of_a_kind_share_a_number() -> None:
    actor = pool(agent_of("a", 1, T4), agent_of("b", 1, H100), agent_of("c", 1, T4))
    assert kinds_of(actor) == (T4, H100)
    assert numbers(actor, "abc") == [0, 1, 0]


def test_kind_of_an_older_agent_is_unknown() -> None:
    actor = pool(agent_joined("a", 1), agent_of("b", 1, H100))
    assert kinds_of(actor) == (None, H100)
    assert numbers(actor, "ab") == [0, 1]
    actor.deliver(agent_of("a", 1, H100, epoch=2), agent_joined("c", 1))
    assert numbers(actor, "abc") == [1, 1, 0]


def test_kind_without_agents_loses_its_number() -> None:
    actor = pool(agent_of("a", 1, T4), agent_of("b", 1, H100))
    actor.deliver(AgentLost("a", 1, "test"), agent_of("c", 1, ADA))
    assert kinds_of(actor) == (ADA, H100)
    assert numbers(actor, "bc") == [1, 0]


def test_further_kinds_of_a_pool_are_unknown() -> None:
    def kind(number: int) -> AgentKind:
        return AgentKind((AgentDevice("cuda", f"T{number}"),))

    actor = pool()
    for number in range(KINDS_MAX + 2):
        actor.deliver(agent_of(f"a{number:03d}", 1, kind(number)))
    kinds = kinds_of(actor)
    assert kinds == (*map(kind, range(KINDS_MAX - 1)), None)
    last = slots_of(actor, f"a{KINDS_MAX + 1:03d}")
    assert last.kind == KINDS_MAX - 1
    actor.deliver(AgentLost("a005", 1, "test"), agent_of("new", 1, H100))
    assert slots_of(actor, "new").kind == 5


def test_changed_devices_change_the_kind() -> None:
    actor = pool(agent_of("a", 1, T4), agent_of("b", 1, T4))
    actor.deliver(agent_of("a", 1, H100, epoch=2))
    assert kinds_of(actor) == (T4, H100)
    assert numbers(actor, "ab") == [1, 0]


def test_change_of_availability_keeps_the_kind() -> None:
    actor = pool(agent_of("a", 1, T4), agent_of("b", 1, H100))
    actor.deliver(AgentAvailabilityChanged("b", 1, Availability(False, True)))
    actor.deliver(AgentAvailabilityChanged("b", 1, Availability()))
    assert numbers(actor, "ab") == [0, 1]


def test_removed_pool_has_no_kinds() -> None:
    actor = pool(agent_of("a", 1, T4))
    actor.deliver(AgentLost("a", 1, "test"), PoolRemoved())
    assert kinds_of(actor) == ()


def test_job_starts_on_the_named_device_only() -> None:
    actor = pool(agent_of("a", 2, T4), agent_of("b", 2, H100), job7=JobRow(slot_type="h100"))
    actor.deliver(*(slots_requested(trial, 7) for trial in (1, 2, 3)))
    assert agents(actor) == {"a": {}, "b": {"1.1": (0,), "2.1": (1,)}}
    # The claim of the job is limited to the two slots of the H100.
    assert actor.state.wait_reason == (
        "needs 1 slot, 0 free (of the agents with slot_type h100); its share is 2 of 4 slots"
    )


def test_job_starts_with_enough_memory_only() -> None:
    actor = pool(agent_of("a", 2, T4), agent_of("b", 2, H100), job7=JobRow(slot_memory=40 * 2**30))
    actor.deliver(slots_requested(1, 7))
    assert agents(actor) == {"a": {}, "b": {"1.1": (0,)}}


def test_gang_gets_agents_that_all_meet_the_needs() -> None:
    kinds = {"a": H100, "b": T4, "c": H100, "d": T4}
    actor = pool(
        *(agent_of(name, 2, kind) for name, kind in kinds.items()), job7=JobRow(slot_type="H100")
    )
    actor.deliver(slots_requested(1, 7, 4), slots_requested(2, 7, 8))
    assert sorted(name for name, held in agents(actor).items() if held) == ["a", "c"]
    assert running(actor) == [1]


def test_waiting_job_starts_when_an_agent_with_the_device_joins() -> None:
    actor = pool(agent_of("a", 2, T4), job7=JobRow(slot_type="H100"))
    actor.deliver(slots_requested(1, 7))
    assert actor.state.wait_reason == "no agent of the pool meets the needs: slot_type H100"
    actor.deliver(agent_of("b", 1, H100))
    assert agents(actor) == {"a": {}, "b": {"1.1": (0,)}}


def test_shared_slot_is_on_an_agent_that_meets_the_needs() -> None:
    row = JobRow(slot_type="H100", slot_sharers=4)
    actor = pool(agent_of("a", 1, T4), agent_of("b", 1, H100), job7=row)
    actor.deliver(*(slots_requested(trial, 7) for trial in range(1, 6)))
    assert running(actor) == [1, 2, 3, 4]
    assert agents(actor)["a"] == {}


def test_trial_of_an_agent_user_avoids_agents_of_other_users() -> None:
    actor = pool(agent_of("a", 2, ADA), agent_of("b", 2, T4), job7=JobRow(agent_user="1002:1002"))
    actor.deliver(slots_requested(1, 7), slots_requested(2, 7), slots_requested(3, 7))
    assert agents(actor)["a"] == {}
    assert running(actor) == [1, 2]


def test_pool_of_agents_without_rights_shows_the_reason() -> None:
    actor = pool(agent_of("a", 2, ADA), job7=JobRow(agent_user="1002:1002"))
    actor.deliver(slots_requested(1, 7))
    assert actor.state.wait_reason == (
        "no agent of the pool meets the needs: the right to run trials as user 1002:1002"
    )
