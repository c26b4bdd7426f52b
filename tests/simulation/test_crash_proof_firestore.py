"""The proof of test_crash_proof on Firestore: every 11th commit, of one scenario in the gate and of
all at night.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import StateTable
from simulator.faults.table_faults import CrashingTable, CrashMoment
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.emulators.firestore import Firestore
from tests.simulation.crash_points import SEED, STRIDE, STRIDE_FIRESTORE, WHENS, crash_points
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.test_crash_proof import expect_the_same_end, run_without_crash

# The shortest: a tick alone asks each shard of the due index, and a request costs milliseconds.
IN_THE_GATE = "error"
PLAYED = [
    scenario
    for scenario in SCENARIOS
    if not scenario.big and (STRIDE == 1 or scenario.name == IN_THE_GATE)
]


@dataclass
class FirestoreCluster(SteppedCluster):
    """A cluster on the database that `path` names."""

    firestore: Firestore | None = None

    def open_table(self) -> FirestoreTable:
        assert self.firestore is not None
        return FirestoreTable(self.firestore.client(self.path.name))

    def close(self) -> None:
        """Leave the connections open, which all tests share."""


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.name)
def test_a_crash_on_firestore_changes_nothing(
    scenario: Scenario, firestore: Firestore, coverage_line: Callable[[str], None]
) -> None:
    began = time.perf_counter()
    drawn = Random(f"{SEED} {scenario.name}")
    points = crash_points(run_without_crash(scenario)[1], (), STRIDE_FIRESTORE, drawn)
    for n in points:
        _crash_once(scenario, n, drawn.choice(WHENS), firestore)
    seconds = time.perf_counter() - began
    coverage_line(
        f"{scenario.name:10} {'on Firestore':22} {len(points):4} crashes, {seconds:5.1f} s"
    )


def _crash_once(scenario: Scenario, n: int, when: CrashMoment, firestore: Firestore) -> None:
    def faults(table: StateTable, process: int) -> StateTable:
        return CrashingTable(table, 0 if process else n, when)

    cluster = FirestoreCluster(Path(firestore.new_database()), faults, firestore=firestore)
    expect_the_same_end(scenario, cluster, f"crash {when} commit {n}, CRASH_SEED={SEED}")
