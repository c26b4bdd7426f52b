"""Hanging runs: detection, the places of the ranks, and restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.actors.messages.trial_hangs import HangReported, HangTimeOver, StacksReported
from control_plane.actors.records import Place, Status
from control_plane.actors.step import SetTimer
from control_plane.actors.trial.hangs import STACKS_MS, hang_text, places_text
from control_plane.actors.trial.state import Allocation, DesiredState, Hang
from control_plane.agents.desired_state import trial_directives
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

HUNG = HangReported(1, 1_800_000, 1_800_000)
WORKS = HangReported(1, 0)
LOADING, REDUCING = "loader.py:12 fetch", "distributed_c10d.py:2501 all_reduce"


def running(*, restarts_hangs: bool = False, nodes: int = 1, max_restarts: int = 5) -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = trial_settings(max_restarts=max_restarts, slots=nodes)
    settings = replace(settings, restarts_hangs=restarts_hangs)
    actor.deliver(trial_created(length=8, of=settings))
    places = tuple(Place(f"agent-{rank}", (0,)) for rank in range(nodes))
    actor.deliver(SlotsAssigned(1, places), ContainerStateReported(1, "RUNNING"))
    return actor


def hang_of(actor: ActorHarness) -> Hang | None:
    allocation: Allocation = actor.state.allocation
    return allocation.hang


def test_hang_is_recorded_with_its_begin() -> None:
    actor = running()
    actor.deliver(HUNG)
    hang = hang_of(actor)
    assert hang is not None
    assert (hang.number, hang.since_ms) == (1, actor.now_ms - 1_800_000)
    assert actor.timers == []
    assert hang_text(hang) == "it has neither reported nor printed anything for 30 min"


def test_run_that_works_again_has_no_present_hang() -> None:
    actor = running()
    actor.deliver(WORKS)
    assert hang_of(actor) is None
    actor.deliver(HUNG, WORKS, StacksReported(1, ((0, LOADING),)))
    ended = hang_of(actor)
    assert ended is not None
    assert (ended.is_over, ended.places) == (True, ())
    actor.deliver(HUNG)
    again = hang_of(actor)
    assert again is not None
    assert again.number == 2


def test_nodes_of_a_gang_get_the_number_of_the_hang() -> None:
    actor = running(nodes=2)
    assert "hang" not in trial_directives(actor.state)
    revision = actor.state.revision
    actor.deliver(HUNG)
    directives = trial_directives(actor.state)
    assert (directives["hang"], directives["revision"]) == (1, revision + 1)
    actor.deliver(
        StacksReported(1, ((0, REDUCING), (1, REDUCING))), StacksReported(1, ((2, LOADING),))
    )
    hang = hang_of(actor)
    assert hang is not None
    assert places_text(hang.places) == f"2 ranks are in {REDUCING}, but rank 2 in {LOADING}"


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ((), ""),
        (((0, LOADING),), f"the process is in {LOADING}"),
        (((0, LOADING), (1, LOADING)), f"all ranks are in {LOADING}"),
        (((0, REDUCING), (1, LOADING)), f"rank 0 is in {REDUCING}, rank 1 in {LOADING}"),
    ],
)
def test_places_are_compared(places: tuple[tuple[int, str], ...], text: str) -> None:
    assert places_text(places) == text


def test_many_differing_ranks_are_counted() -> None:
    places = [(rank, LOADING) for rank in range(20)]
    places += [(20 + rank, f"place {rank}") for rank in range(10)]
    assert places_text(places).endswith("rank 27 in place 7 and 2 more")


def test_hanging_run_restarts_after_the_time_for_stacks() -> None:
    actor = running(restarts_hangs=True)
    actor.deliver(HUNG, StacksReported(1, ((0, LOADING),)))
    assert actor.timers == [SetTimer(actor.now_ms + STACKS_MS, HangTimeOver(1, 1))]
    actor.deliver(HangTimeOver(1, 1))
    assert actor.state.allocation.desired_state is DesiredState.KILL
    actor.deliver(AllocationExited(1, "killed", -9))
    state = actor.state
    assert (state.status, state.restarts, state.epoch) == (Status.ACTIVE, 1, 2)
    assert state.message == (
        "the run hung: it has neither reported nor printed anything for 30 min:"
        f" the process is in {LOADING}"
    )


def test_last_hang_ends_the_trial() -> None:
    actor = running(restarts_hangs=True, max_restarts=0)
    actor.deliver(HUNG, HangTimeOver(1, 1), AllocationExited(1, "killed", -9))
    assert actor.state.status is Status.ERROR


@pytest.mark.parametrize("number", [1, 2])
def test_timer_of_an_ended_hang_changes_nothing(number: int) -> None:
    actor = running(restarts_hangs=True)
    actor.deliver(HUNG, WORKS, *([HUNG] if number == 2 else []), HangTimeOver(1, 1))
    assert actor.state.allocation.desired_state is DesiredState.RUN


def test_stopping_run_does_not_hang() -> None:
    actor = running()
    actor.deliver(PreemptionRequested(1, "a job with a higher priority"), HUNG)
    assert hang_of(actor) is None
