"""Proof that a crash of the provisioner loses no work and leaks no machine.

A pool grows from zero to three instances and back. A first run without a crash counts the commits
and the calls to the cloud. Then the process dies before or after a sample of commits and calls, and
a new process continues. `FakeCloudFleet` checks the invariants after every step.
"""

from collections.abc import Callable

import pytest

from control_plane.state.table import StateTable
from provisioner.clouds.fake.provider import FakeRules
from provisioner.model import ProvisionerSettings
from simulator.faults.table_faults import CrashingTable, CrashMoment
from simulator.stepped.scripted_pool import Work
from simulator.stepped.stepped_fleet import FakeCloudFleet
from tests.simulation.crash_points import STRIDE_SHORT, WHENS, crash_points
from tests.thinning import every

SETTINGS = ProvisionerSettings("fake", max_instances=3, idle_ms_max=60_000)
RULES = FakeRules(
    visible_ms=(5_000, 40_000),
    running_ms=(20_000, 60_000),
    boot_ms=(10_000, 90_000),
    ending_ms=(10_000, 60_000),
    partial_share=0.5,
)
SEEDS = range(2)


def _end_state(simulation: FakeCloudFleet) -> None:
    """Run work for three instances, until the work is done and the fleet is empty."""
    simulation.pool.work = [Work(2, 120_000) for _ in range(6)]
    simulation.run_until(lambda: not simulation.pool.work, 1_800)
    simulation.run_until(simulation.is_empty, 900)


def _run_without_crash(seed: int) -> tuple[int, int]:
    tables: list[CrashingTable] = []

    def counting_table(table: StateTable) -> StateTable:
        tables.append(CrashingTable(table))
        return tables[0]

    simulation = FakeCloudFleet(SETTINGS, RULES, seed=seed, faults=counting_table)
    _end_state(simulation)
    return tables[0].commits, simulation.watched.calls


@pytest.mark.parametrize("seed", every(2, SEEDS))
def test_provisioner_crash_at_any_commit_leaks_no_machine(
    seed: int, coverage_line: Callable[[str], None]
) -> None:
    commits, _ = _run_without_crash(seed)
    points = crash_points(commits, stride=STRIDE_SHORT)
    for n in points:
        for when in WHENS:

            def crashing(table: StateTable, n: int = n, when: CrashMoment = when) -> StateTable:
                return CrashingTable(table, n, when)

            simulation = FakeCloudFleet(SETTINGS, RULES, seed=seed, faults=crashing)
            _end_state(simulation)
            assert simulation.crashes == 1, f"seed {seed}, crash {when} commit {n}"
    coverage_line(f"fleet, seed {seed}: {commits} commits, {2 * len(points)} crashes")


@pytest.mark.parametrize("seed", SEEDS)
def test_provisioner_crash_at_any_cloud_call_leaks_no_machine(
    seed: int, coverage_line: Callable[[str], None]
) -> None:
    _, calls = _run_without_crash(seed)
    points = crash_points(calls, stride=STRIDE_SHORT)
    for n in points:
        for when in WHENS:
            simulation = FakeCloudFleet(SETTINGS, RULES, seed=seed)
            simulation.watched.crash_at, simulation.watched.when = n, when
            _end_state(simulation)
            assert simulation.crashes == 1, f"seed {seed}, crash {when} call {n}"
    coverage_line(f"fleet, seed {seed}: {calls} calls to the cloud, {2 * len(points)} crashes")
