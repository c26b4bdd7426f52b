"""The proof that a crash between any two writes loses nothing.

Each scenario runs undisturbed once; its N commits are counted and its end is kept. Then the
process dies at commit n, before or after it happened, and a fresh process goes on with the file:
for a sample of n (`crash_points`), and for every commit of a spilled outbox.
The end must be the undisturbed one, and the invariants of `watch` hold after every commit.

A failure names the point.
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
from tests.simulation.scenarios import SCENARIOS, Scenario

REPEATED_CRASHES = 12


def _stay(agent: ScriptedAgent) -> None:
    """The agent lives on and repeats its call."""


def _enrol_again(agent: ScriptedAgent) -> None:
    """The agent was restarted too; what runs on its machine goes on."""
    agent.forget_session()


def _lose_everything(agent: ScriptedAgent) -> None:
    """The agent's machine was restarted: it has nothing and knows nothing."""
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
    [(s, a) for s in SCENARIOS for a in AFTER_CRASH if s.agents or a == "agents-stay"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_crash_at_any_commit_changes_nothing(
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
def test_crashes_that_follow_each_other_change_nothing(scenario: Scenario, tmp_path: Path) -> None:
    _, commits, _ = run_without_crash(scenario)
    drawn = Random(SEED)
    lives = [drawn.randint(1, 2 * commits // REPEATED_CRASHES) for _ in range(REPEATED_CRASHES)]

    def dies_again(table: StateTable, process: int) -> StateTable:
        return CrashingTable(table, lives[process] if process < REPEATED_CRASHES else 0, "after")

    replay = f"CRASH_SEED={SEED}: processes that die after {lives} commits"
    expect_the_same_end(scenario, SteppedCluster(tmp_path / "table.db", dies_again), replay)


@by_name
def test_what_the_commits_wrote_is_in_the_file(scenario: Scenario, tmp_path: Path) -> None:
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
    """Return the end, the number of commits, and those of them that touch a spilled outbox."""
    counting: list[CrashingTable] = []

    def counting_table(table: StateTable, process: int) -> StateTable:
        counting.append(CrashingTable(table))
        return counting[-1]

    cluster = SteppedCluster(Path(":memory:"), counting_table)
    scenario.play(cluster)
    end = end_state(cluster.checker, interchangeable=scenario.interchangeable)
    cluster.close()
    assert end["left over"] == [[], [], [], []]
    assert counting[0].commits == cluster.checker.commits, "a commit failed with nobody else there"
    return end, counting[0].commits, tuple(cluster.checker.outbox_commits)


def crash_at_a_sample(
    scenario: Scenario, stride: int, make_cluster: Callable[[Faults], SteppedCluster], where: str
) -> str:
    """Crash a scenario at some commits on another table; returns a line of coverage."""
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
    try:
        scenario.play(cluster)
    except (AssertionError, InvariantBroken) as error:
        raise AssertionError(f"{replay}: {error}") from error
    finally:
        cluster.close()
    end = end_state(cluster.checker, interchangeable=scenario.interchangeable)
    assert end == run_without_crash(scenario)[0], replay
    assert cluster.processes > 1, f"{replay}: nothing crashed"
