"""The check of a gang's machines: the field of the specification, and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.actors.messages.pool import (
    GangChecked,
    GangCheckRules,
    PoolConfigured,
    PoolSettings,
)
from control_plane.actors.messages.trial_gang_checks import (
    FAULTS_MAX,
    GangCheckReported,
    GangMeetingDelayed,
)
from control_plane.actors.records import Place
from control_plane.actors.trial.gang_checks import MOVES_MAX
from control_plane.actors.trial.state import Allocation, TrialState
from control_plane.agents.gang_checks import gang_check_fields
from control_plane.agents.reports import Report, ReportContext, to_message
from control_plane.engine.engine import Engine
from control_plane.evolve import evolve
from control_plane.state.memory import MemoryTable
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

NOW_MS = 10_000_000
LINE: dict[str, Any] = {"kind": "gang_check", "bandwidth": 250.5, "device": "cpu", "rounds": 1}
FAULT: dict[str, Any] = {"kind": "gang_check", "bandwidth": 0, "bad_nodes": [1], "message": "slow"}


def engine(settings: PoolSettings | None = None, versions: str = "111") -> Engine:
    """Return a cluster with the agents a, b and c in the pool `default`."""
    made = Engine(MemoryTable(), lambda: NOW_MS)
    pool = addresses.pool("default")
    made.execute_command(pool, PoolConfigured("default", settings or PoolSettings()))
    for name, version in zip("abc", versions, strict=True):
        enrolled = AgentEnrolled(name, "default", ((0, "cpu", "", ""),), version)
        made.execute_command(addresses.agent(name), enrolled)
    made.advance_until_idle((pool,))
    return made


def trial(agents: str = "ab", **fields: Any) -> TrialState:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=8, of=trial_settings(slots=2)))
    places = tuple(Place(agent, (0,)) for agent in agents)
    allocation: Allocation = replace(
        actor.state.allocation, places=places, placed_ms=NOW_MS, pool="default"
    )
    state: TrialState = evolve(actor.state, allocation=allocation, **fields)
    return state


def test_new_gang_gets_the_settings_of_the_pool() -> None:
    rules = GangCheckRules(min_bandwidth=7.0, timeout_ms=5)
    assert gang_check_fields(engine(PoolSettings(gang_check=rules)), trial()) == {
        "gang_check": {
            "timeout_ms": 5,
            "min_bandwidth": 7.0,
            "limits": {},
            "has_passed_before": False,
        }
    }


def test_machines_that_have_passed_are_not_checked_again() -> None:
    cluster = engine()
    cluster.execute_command(addresses.pool("default"), GangChecked(("a", "b"), "cpu", 100.0))
    fields = gang_check_fields(cluster, trial())["gang_check"]
    assert fields == {"skip": "the machines have passed within the hour"}


def test_unproven_machines_are_compared_with_the_usual_bandwidth() -> None:
    cluster = engine()
    cluster.execute_command(addresses.pool("default"), GangChecked(("a", "b"), "cpu", 100.0))
    fields = gang_check_fields(cluster, trial("ac"))["gang_check"]
    # A quarter of the median of a single check.
    assert (fields["limits"], fields["has_passed_before"]) == ({"cpu": 25.0}, True)


def test_trial_that_has_moved_often_starts_without_a_check() -> None:
    fields = gang_check_fields(engine(), trial(check_moves=MOVES_MAX))
    assert fields == {"gang_check": {"skip": "it has failed 3 times in a row"}}


@pytest.mark.parametrize(
    ("cluster", "state"),
    [
        # A trial on a single machine.
        (engine(), trial("a")),
        (engine(PoolSettings(gang_check=GangCheckRules(enabled=False))), trial()),
        # An older agent would not take part in the check.
        (engine(versions="121"), trial()),
        (engine(), evolve(trial(), allocation=None)),
    ],
)
def test_other_trials_are_not_checked(cluster: Engine, state: TrialState) -> None:
    assert gang_check_fields(cluster, state) == {}


def read(line: dict[str, Any], writer: str = "0") -> object:
    return to_message(Report(4, 2, writer, 100, line), ReportContext("loss"))


def test_check_counts_from_the_chief_only() -> None:
    assert read(LINE) == GangCheckReported(2, 250.5, "cpu")
    assert read(FAULT) == GangCheckReported(2, bad_nodes=(1,), text="slow")
    assert (read(LINE, "1"), read(LINE, "agent")) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"bandwidth": 0},
        {"bandwidth": -1},
        {"bandwidth": float("nan")},
        {"bandwidth": True},
        {"bandwidth": "9"},
        {"bad_nodes": [-1]},
        {"bad_nodes": 3},
        {"bad_links": [[1]]},
        {"bad_links": [["a", "b"]]},
        {"rounds": 10**9},
    ],
)
def test_malformed_checks_are_ignored(fields: dict[str, Any]) -> None:
    assert read({**LINE, **fields}) is None


def test_hostile_check_is_bounded() -> None:
    hostile = {**FAULT, "message": "x" * 10_000, "device": "d" * 999, "bad_nodes": [0] * 999}
    message = read(hostile)
    assert isinstance(message, GangCheckReported)
    assert (len(message.text), len(message.device), len(message.bad_nodes)) == (200, 60, FAULTS_MAX)


MEETING = {"kind": "gang_meeting", "missing": [0], "met": 0, "seconds": 60.0}


def test_node_speaks_for_itself_about_missing_nodes() -> None:
    # The cluster knows the node's rank: the writer 7 of node 3 is not believed to be node 7.
    context = ReportContext("loss", node_rank=3, nodes=8)
    message = to_message(Report(4, 2, "7", 100, {**MEETING, "node_rank": 1}), context)
    assert message == GangMeetingDelayed(2, 3, (0,), has_met=False, waited_ms=60_000)
    assert read({**MEETING, "missing": [*range(1, 99)], "met": 100}) == GangMeetingDelayed(
        2, 0, tuple(range(1, 1 + FAULTS_MAX)), has_met=True, waited_ms=60_000
    )


@pytest.mark.parametrize(
    "fields",
    [{"missing": 3}, {"missing": [-1]}, {"met": "x"}, {"seconds": "x"}, {"seconds": float("inf")}],
)
def test_malformed_reports_of_missing_nodes_are_ignored(fields: dict[str, Any]) -> None:
    assert read({**MEETING, **fields}) is None
