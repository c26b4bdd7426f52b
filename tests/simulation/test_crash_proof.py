"""Proof that a crash between any two writes loses no state.

A first run of each scenario without a crash counts the commits and keeps the end. Then the process
dies before or after commit n, and a new process continues with the file. The numbers n are a sample
(`crash_points`) and every commit of a spilled outbox.

The end must equal the undisturbed end, and the invariants hold after every commit. The message of a
failure names the crash point.
"""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from control_plane.state.table import StateTable
from simulator.checks.end_state import end_state
from simulator.checks.state_checker import InvariantBroken
from simulator.faults.table_faults import CrashingTable, CrashMoment
from simulator.stepped.scripted_agent import ScriptedAgent
from simulator.stepped.stepped_cluster import Faults, SteppedCluster
from tests.simulation.crash_points import SEED, STRIDE, STRIDE_BIG, WHENS, crash_points
from tests.simulation.gate_sample import gate_pairs
from tests.simulation.scenarios import SCENARIOS, Scenario

REPEATED_CRASHES = 12


def _stay(agent: ScriptedAgent) -> None:
    """Leave the agent running; the agent repeats the call."""


def _enrol_again(agent: ScriptedAgent) -> None:
    """Restart the agent; the trial processes on its machine continue."""
    agent.forget_session()


def _lose_everything(agent: ScriptedAgent) -> None:
    """Restart the machine of the agent, which loses the session and all processes."""
    agent.forget_session()
    agent.processes.clear()


AFTER_CRASH: dict[str, Callable[[ScriptedAgent], None]] = {
    "agents-stay": _stay,
    "agents-enrol-again": _enrol_again,
    "agents-lose-everything": _lose_everything,
}
by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.mark.parametrize(
    ("scenario", "after_crash"),
    gate_pairs(
        [(s, a) for s in SCENARIOS for a in AFTER_CRASH if s.agents or a == "agents-stay"],
        tuple(AFTER_CRASH),
    ),
)
def test_crash_at_any_commit_keeps_the_scenarios_end(
    scenario: Scenario, after_crash: str, tmp_path: Path, coverage_line: Callable[[str], None]
) -> None:
    began = time.perf_counter()
    _, commits, outbox_commits = run_without_crash(scenario)
    stride = STRIDE_BIG if scenario.big else STRIDE
    points = crash_points(commits, outbox_commits, stride)
    done = 0
    for n in points:
        for when in WHENS:
            _crash_once(scenario, after_crash, n, when, tmp_path / f"{n}-{when}.db")
            done += 1
    seconds = time.perf_counter() - began
    sample = "every commit" if stride == 1 else f"seed {SEED}"
    coverage_line(
        f"{scenario.name:10} {after_crash:22} {commits:4} commits, {done:4} crashes"
        f" ({sample}), {seconds:5.1f} s"
    )


@by_name
def test_repeated_crashes_keep_the_scenarios_end(scenario: Scenario, tmp_path: Path) -> None:
    _, commits, _ = run_without_crash(scenario)
    drawn = Random(SEED)
    lives = [drawn.randint(1, 2 * commits // REPEATED_CRASHES) for _ in range(REPEATED_CRASHES)]

    def dies_again(table: StateTable, process: int) -> StateTable:
        return CrashingTable(table, lives[process] if process < REPEATED_CRASHES else 0, "after")

    replay = f"CRASH_SEED={SEED}: processes that die after {lives} commits"
    expect_the_same_end(scenario, SteppedCluster(tmp_path / "table.db", dies_again), replay)


@by_name
def test_table_file_contains_every_committed_row(scenario: Scenario, tmp_path: Path) -> None:
    cluster = SteppedCluster(tmp_path / "table.db")
    scenario.play(cluster)
    cluster.close()
    cluster.host = cluster.boot()
    for key, put in cluster.checker.rows.items():
        row = cluster.host.rows.get(key)
        assert row is not None, key
        assert (row.revision, row.body, row.due_ms) == (put.revision, put.body, put.due_ms)
    cluster.close()


@cache
def run_without_crash(scenario: Scenario) -> tuple[dict[str, Any], int, tuple[int, ...]]:
    """Play a scenario without a crash.

    Return the end, the number of commits, and the numbers of commits of a spilled outbox.
    """
    counting: list[CrashingTable] = []

    def counting_table(table: StateTable, process: int) -> StateTable:
        counting.append(CrashingTable(table))
        return counting[-1]

    cluster = SteppedCluster(Path(":memory:"), counting_table)
    scenario.play(cluster)
    end = end_state(cluster.checker, interchangeable=scenario.interchangeable)
    cluster.close()
    assert end["left over"] == [[], [], [], []]
    assert counting[0].commits == cluster.checker.commits, (
        "a commit failed without a second process"
    )
    return end, counting[0].commits, tuple(cluster.checker.outbox_commits)


def crash_at_a_sample(
    scenario: Scenario, stride: int, make_cluster: Callable[[Faults], SteppedCluster], where: str
) -> str:
    """Crash a scenario at every `stride`-th commit on the table of `make_cluster`.

    Return a coverage line with `where` as the name of the table.
    """
    began = time.perf_counter()
    drawn = Random(f"{SEED} {scenario.name}")
    points = crash_points(run_without_crash(scenario)[1], (), stride, drawn)
    for n in points:
        when = drawn.choice(WHENS)
        cluster = make_cluster(_crashing(n, when))
        expect_the_same_end(scenario, cluster, f"crash {when} commit {n}, CRASH_SEED={SEED}")
    seconds = time.perf_counter() - began
    return f"{scenario.name:10} {where:22} {len(points):4} crashes, {seconds:5.1f} s"


def _crashing(n: int, when: CrashMoment) -> Faults:
    return lambda table, process: CrashingTable(table, n if process == 0 else 0, when)


def _crash_once(
    scenario: Scenario, after_crash: str, n: int, when: CrashMoment, path: Path
) -> None:
    replay = f"scenario {scenario.name}, crash {when} commit {n}, {after_crash}, seed {SEED}"
    cluster = SteppedCluster(path, _crashing(n, when), AFTER_CRASH[after_crash])
    expect_the_same_end(scenario, cluster, replay)
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def expect_the_same_end(scenario: Scenario, cluster: SteppedCluster, replay: str) -> None:
    """Play a scenario, close the cluster, and compare the end with the undisturbed end.

    Raise AssertionError with `replay` if the ends differ or no process crashed.
    """
    try:
        scenario.play(cluster)
    except (AssertionError, InvariantBroken) as error:
        raise AssertionError(f"{replay}: {error}") from error
    finally:
        cluster.close()
    end = end_state(cluster.checker, interchangeable=scenario.interchangeable)
    assert end == run_without_crash(scenario)[0], replay
    assert cluster.processes > 1, f"{replay}: nothing crashed"
