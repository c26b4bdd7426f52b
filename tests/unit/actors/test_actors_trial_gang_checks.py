"""Trials whose machines were checked before the start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.actors.messages.pool import ExclusionRequested, GangChecked, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    RestartDue,
    SlotsAssigned,
    TrialKillRequested,
)
from control_plane.actors.messages.trial_gang_checks import GangCheckReported, GangMeetingDelayed
from control_plane.actors.records import Place, Status
from control_plane.actors.step import SetTimer
from control_plane.actors.trial.gang_checks import MOVE_MS, bad_ranks, unreachable_ranks
from control_plane.actors.trial.state import Absence, DesiredState
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

POOL = "pool#default"
PASSED = GangCheckReported(1, 250.0, "cpu")
FAILED = GangCheckReported(1, bad_nodes=(1,), text="node 1 (b): took too long", rounds=4)
TEXT = "the check of the machines failed: node 1 (b): took too long"


def gang(*, max_restarts: int = 0, nodes: int = 2) -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = trial_settings(max_restarts=max_restarts, slots=nodes)
    actor.deliver(trial_created(length=8, of=settings))
    return place(actor, nodes)


def place(actor: ActorHarness, nodes: int = 2) -> ActorHarness:
    epoch = actor.state.epoch
    places = tuple(Place("abc"[rank], (0,)) for rank in range(nodes))
    running = [ContainerStateReported(epoch, "RUNNING", rank, nodes) for rank in range(nodes)]
    actor.deliver(SlotsAssigned(epoch, places), *running)
    return actor


def exit_all(actor: ActorHarness, nodes: int = 2) -> None:
    epoch = actor.state.epoch
    for rank in range(nodes):
        actor.deliver(AllocationExited(epoch, "killed", node_rank=rank, nodes=nodes))


def fail_check(actor: ActorHarness) -> None:
    actor.deliver(replace(FAILED, epoch=actor.state.epoch))
    exit_all(actor)


def test_passed_check_is_sent_to_the_pool_once() -> None:
    actor = gang()
    actor.deliver(PASSED)
    assert actor.messages_to(POOL) == [GangChecked(("a", "b"), "cpu", 250.0)]
    assert actor.state.allocation.desired_state is DesiredState.RUN
    actor.deliver(PASSED)
    assert actor.messages_to(POOL) == []
    # A late report of a fault does not end a run that has passed.
    actor.deliver(FAILED)
    assert actor.state.allocation.desired_state is DesiredState.RUN


def test_failed_check_moves_the_trial_without_a_restart() -> None:
    actor = gang()
    actor.deliver(FAILED)
    assert actor.messages_to(POOL) == [ExclusionRequested("b", f"trial 4: {TEXT}", by_check=True)]
    assert actor.state.allocation.desired_state is DesiredState.KILL
    assert actor.state.allocation.desired_state_reason == TEXT
    actor.deliver(FAILED)
    assert actor.messages_to(POOL) == []

    exit_all(actor)
    assert actor.timers == [SetTimer(actor.now_ms + MOVE_MS, RestartDue(1))]
    assert not any(isinstance(one, SlotsRequested) for one in actor.messages_to(POOL))
    actor.deliver(RestartDue(1))
    [request] = actor.messages_to(POOL)
    assert isinstance(request, SlotsRequested)
    state = actor.state
    assert (state.restarts, state.check_moves, state.status) == (0, 1, Status.ACTIVE)
    assert state.message == TEXT


def test_passed_check_ends_the_count_of_moves() -> None:
    actor = gang()
    fail_check(actor)
    actor.deliver(RestartDue(1))
    fail_check(place(actor))
    assert actor.state.check_moves == 2
    actor.deliver(RestartDue(2))
    place(actor).deliver(replace(PASSED, epoch=3))
    assert actor.state.check_moves == 0


def test_killed_trial_does_not_move_after_a_failed_check() -> None:
    actor = gang()
    actor.deliver(FAILED, TrialKillRequested())
    exit_all(actor)
    assert actor.state.status is Status.CANCELED
    assert actor.timers == []


@pytest.mark.parametrize(
    ("report", "nodes"),
    [
        (replace(FAILED, epoch=0), 2),
        # A trial on a single machine has no check.
        (FAILED, 1),
    ],
)
def test_report_without_a_gang_or_of_an_earlier_run_changes_nothing(
    report: GangCheckReported, nodes: int
) -> None:
    actor = gang(nodes=nodes)
    before = actor.state
    actor.deliver(report)
    assert actor.state == before


@pytest.mark.parametrize(
    ("nodes", "links", "ranks"),
    [
        ((), ((0, 2),), (2,)),
        ((1,), (), (1,)),
        # The link of a bad node blames no other node.
        ((0,), ((0, 2),), (0,)),
        # Rank 7 of a gang of three nodes does not exist.
        ((7,), (), ()),
    ],
)
def test_link_blames_the_node_of_higher_rank(
    nodes: tuple[int, ...], links: tuple[tuple[int, int], ...], ranks: tuple[int, ...]
) -> None:
    report = GangCheckReported(1, bad_nodes=nodes, bad_links=links)
    assert bad_ranks(report, 3) == ranks


def excluded_agents(actor: ActorHarness) -> list[str]:
    return [one.agent for one in actor.messages_to(POOL) if isinstance(one, ExclusionRequested)]


def delay_report(rank: int, *missing: int, has_met: bool = False) -> GangMeetingDelayed:
    return GangMeetingDelayed(1, rank, missing, has_met, 60_000)


@pytest.mark.parametrize(
    ("nodes", "absences", "bad"),
    [
        # Node 2 cannot reach node 0, which node 1 has reached.
        (3, [Absence(0, (2,), has_met=True), Absence(2, (0,))], (2,)),
        # Node 2 has not started its process, so that nothing is known about its machine.
        (3, [Absence(0, (1, 2), has_met=False), Absence(1, (0,))], ()),
        (3, [Absence(0, (2,), has_met=True)], ()),
        # Node 0 may not have started.
        (3, [Absence(1, (0,)), Absence(2, (0,))], ()),
        # Node 1 has met node 0 after the report that it misses node 0.
        (3, [Absence(0, (2,), has_met=True), Absence(1, (0,))], ()),
        # All other nodes fail to reach node 0.
        (3, [Absence(0, (1, 2)), Absence(1, (0,)), Absence(2, (0,))], (0,)),
        # The list of node 0 is cut after some ranks.
        (4, [Absence(0, (1,)), *(Absence(rank, (0,)) for rank in (1, 2, 3))], (0,)),
        (2, [Absence(0, (1,)), Absence(1, (0,))], (1,)),
        (4, [Absence(0, (1, 3), has_met=True), Absence(1, (0,)), Absence(3, (0,))], (1, 3)),
    ],
)
def test_machines_that_cannot_meet_are_known_from_both_sides(
    nodes: int, absences: list[Absence], bad: tuple[int, ...]
) -> None:
    assert unreachable_ranks(absences, nodes) == bad


def test_trial_moves_away_from_machines_that_cannot_meet() -> None:
    actor = gang(nodes=3)
    actor.deliver(delay_report(2, 0))
    assert not actor.state.allocation.has_failed_check
    # Node 0 first misses both other nodes, and later node 2 only.
    actor.deliver(delay_report(0, 1, 2))
    assert actor.messages_to(POOL) == []
    actor.deliver(delay_report(0, 2, has_met=True))
    text = "the check of the machines failed: node 2 (c): no connection to node 0 within 60 s"
    assert actor.messages_to(POOL) == [ExclusionRequested("c", f"trial 4: {text}", by_check=True)]
    assert actor.state.allocation.desired_state is DesiredState.KILL
    assert actor.state.allocation.desired_state_reason == text
    # A duplicate excludes no machine again.
    actor.deliver(delay_report(0, 2, has_met=True))
    assert actor.messages_to(POOL) == []
    exit_all(actor, 3)
    actor.deliver(RestartDue(1))
    assert (actor.state.restarts, actor.state.check_moves) == (0, 1)


def test_late_report_excludes_another_machine_while_the_run_ends() -> None:
    actor = gang(nodes=3)
    actor.deliver(delay_report(0, 1, 2, has_met=True), delay_report(2, 0))
    assert excluded_agents(actor) == ["c"]
    actor.deliver(delay_report(1, 0))
    assert excluded_agents(actor) == ["b"]


@pytest.mark.parametrize("before", [PASSED, TrialKillRequested()])
def test_delay_counts_only_before_the_result(before: object) -> None:
    actor = gang(nodes=3)
    actor.deliver(before)
    actor.messages_to(POOL)
    actor.deliver(delay_report(0, 2, has_met=True), delay_report(2, 0))
    assert actor.messages_to(POOL) == []
