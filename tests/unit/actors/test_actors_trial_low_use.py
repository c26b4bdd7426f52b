"""The use of a trial's slots: sums of nodes, usage rows, and the policy for low use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.actors.cost import decode_usage
from control_plane.actors.messages.experiment import TrialMetered
from control_plane.actors.messages.experiment_use import TrialUsedLittle
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.low_use import low_use_text
from control_plane.actors.trial.state import Allocation, DesiredState
from control_plane.actors.use import Use
from control_plane.agents.reports import Report, ReportContext, to_message
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

HOUR_MS = 3_600_000
LOW = LowUseReported(1, True, 2.5, HOUR_MS)
ENOUGH = LowUseReported(1, False, 40.0, HOUR_MS)
USE = Use(10_000, 5_000, 1_000, 2_000)


def running(*, ends_low_use: bool = False, nodes: int = 1) -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = replace(trial_settings(slots=nodes), low_use="end" if ends_low_use else "notify")
    actor.deliver(trial_created(length=8, of=settings))
    places = tuple(Place(f"agent-{rank}", (0,)) for rank in range(nodes))
    actor.deliver(SlotsAssigned(1, places))
    for rank in range(nodes):
        actor.deliver(ContainerStateReported(1, "RUNNING", rank, nodes))
    return actor


def allocation_of(actor: ActorHarness) -> Allocation:
    allocation: Allocation = actor.state.allocation
    return allocation


def low_since_ms(actor: ActorHarness) -> int | None:
    low_use = allocation_of(actor).low_use
    return None if low_use is None else low_use.since_ms


def low_nodes(actor: ActorHarness) -> tuple[int, ...]:
    low_use = allocation_of(actor).low_use
    return () if low_use is None else low_use.nodes


def usages(actor: ActorHarness) -> list[Use]:
    rows = [row for (part, _), row in actor.rows.items() if part == "usage#default"]
    return [decode_usage(row.body).use for row in rows]


class TestUse:
    def test_sums_of_the_nodes_are_stored_with_the_end(self) -> None:
        actor = running(nodes=2)
        actor.deliver(UseReported(1, USE, 1), UseReported(1, USE, 0))
        actor.now_ms += 60_000
        for rank in (0, 1):
            actor.deliver(AllocationExited(1, "preempted", node_rank=rank, nodes=2))
        assert usages(actor) == [USE + USE]
        assert actor.state.use == USE + USE
        (metered,) = actor.all_messages(TrialMetered)
        assert (metered.use, metered.cost_micros) == (USE + USE, 0)

    def test_repeated_and_older_sums_change_nothing(self) -> None:
        actor = running()
        actor.deliver(UseReported(1, USE), UseReported(1, USE), UseReported(1, Use(9_000, 1)))
        assert allocation_of(actor).uses == (USE,)

    def test_later_sums_replace_earlier_sums(self) -> None:
        actor = running()
        later = Use(20_000, 5_000, 11_000, 4_000)
        actor.deliver(UseReported(1, USE), UseReported(1, later))
        assert allocation_of(actor).uses == (later,)

    def test_use_of_an_earlier_allocation_is_ignored(self) -> None:
        actor = running()
        actor.deliver(AllocationExited(1, "preempted"), UseReported(1, USE))
        assert (actor.state.use, usages(actor)) == (None, [])

    def test_lost_machine_keeps_the_reported_use(self) -> None:
        actor = running()
        actor.deliver(UseReported(1, USE), AllocationLost(1, "gone", "agent-0"))
        assert usages(actor) == [USE]

    def test_allocation_without_price_and_use_has_no_row(self) -> None:
        actor = running()
        actor.deliver(AllocationExited(1, "preempted"))
        assert usages(actor) == []


class TestLowUse:
    def test_experiment_is_told_once(self) -> None:
        actor = running()
        actor.deliver(LOW)
        text = low_use_text(2.5, HOUR_MS)
        assert text == "its slots computed 2.5 % of the last 60 min"
        assert actor.messages_to("experiment#1") == [TrialUsedLittle(3, text, False)]
        assert low_since_ms(actor) == actor.now_ms - HOUR_MS
        assert allocation_of(actor).desired_state is DesiredState.RUN
        actor.deliver(LOW)
        assert actor.messages_to("experiment#1") == []

    def test_use_that_rises_and_falls_is_told_again(self) -> None:
        actor = running()
        actor.deliver(LOW, ENOUGH)
        assert low_since_ms(actor) is None
        actor.deliver(LOW)
        assert len(actor.messages_to("experiment#1")) == 1

    def test_gang_is_low_when_all_nodes_are(self) -> None:
        actor = running(nodes=2)
        actor.deliver(LOW)
        assert low_since_ms(actor) is None
        actor.deliver(replace(LOW, node_rank=1))
        assert low_nodes(actor) == (0, 1)
        assert len(actor.all_messages(TrialUsedLittle)) == 1

    def test_end_saves_a_checkpoint_and_cancels_with_the_reason(self) -> None:
        actor = running(ends_low_use=True)
        actor.deliver(LOW)
        assert allocation_of(actor).desired_state is DesiredState.PREEMPT
        assert actor.messages_to("experiment#1") == [
            TrialUsedLittle(3, low_use_text(2.5, HOUR_MS), True)
        ]
        actor.deliver(AllocationExited(1, "preempted"))
        assert actor.state.status is Status.CANCELED
        assert "computed 2.5 % of the last 60 min (low_use)" in actor.state.message

    @pytest.mark.parametrize("reason", ["killed", "errored"])
    def test_run_that_does_not_stop_is_canceled_too(self, reason: str) -> None:
        actor = running(ends_low_use=True)
        actor.deliver(LOW, AllocationExited(1, reason, 1))
        assert (actor.state.status, actor.state.restarts) == (Status.CANCELED, 0)

    def test_run_that_completes_meanwhile_is_complete(self) -> None:
        actor = running(ends_low_use=True)
        actor.deliver(LOW, AllocationExited(1, "completed", 0))
        assert actor.state.status is Status.COMPLETED

    def test_run_that_was_asked_to_stop_is_not_low(self) -> None:
        actor = running(ends_low_use=True)
        actor.deliver(PreemptionRequested(1, "for another job"), LOW)
        assert low_since_ms(actor) is None
        assert actor.messages_to("experiment#1") == []


LINE = {"kind": "use", "measured_ms": 10, "busy_ms": 5, "low_ms": 2, "memory_ms": 1}
LOW_LINE = {"kind": "low_use", "is_low": True, "percent": 2.5, "time_ms": HOUR_MS}


class TestReports:
    def convert(self, line: dict[str, object], writer: str = "agent") -> object:
        return to_message(Report(4, 1, writer, 1, line), ReportContext("loss", node_rank=1))

    def test_lines_of_the_agent_become_messages(self) -> None:
        assert self.convert(LINE) == UseReported(1, Use(10, 5, 2, 1), 1)
        assert self.convert(LOW_LINE) == replace(LOW, node_rank=1)

    def test_lines_of_the_trial_itself_are_ignored(self) -> None:
        assert self.convert(LINE, "0") is None
        assert self.convert(LOW_LINE, "0") is None

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"busy_ms": 11}, {"low_ms": -1}, {"memory_ms": 0.5}, {"measured_ms": 1 << 60}),
            {"measured_ms": True},
        ],
    )
    def test_impossible_sums_are_ignored(self, wrong: dict[str, object]) -> None:
        assert self.convert({**LINE, **wrong}) is None

    @pytest.mark.parametrize(
        "wrong", [{"percent": 101}, {"percent": "x"}, {"is_low": 1}, {"time_ms": -1}]
    )
    def test_impossible_low_use_is_ignored(self, wrong: dict[str, object]) -> None:
        assert self.convert({**LOW_LINE, **wrong}) is None
