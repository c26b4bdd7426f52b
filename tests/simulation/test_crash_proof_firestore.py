"""The proof of test_crash_proof on Firestore, at every 11th commit.

The gate runs one scenario, the nightly run all scenarios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.gcp.state_table import FirestoreTable
from simulator.stepped.stepped_cluster import Faults, SteppedCluster
from tests.emulators.firestore import Firestore
from tests.simulation.crash_points import STRIDE, STRIDE_FIRESTORE
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.test_crash_proof import crash_at_a_sample

# The shortest scenario: a single tick queries every shard of the due index.
IN_THE_GATE = "error"
PLAYED = [
    scenario
    for scenario in SCENARIOS
    if not scenario.big and (STRIDE == 1 or scenario.name == IN_THE_GATE)
]


@dataclass
class FirestoreCluster(SteppedCluster):
    """A cluster on the Firestore database named by `path`."""

    firestore: Firestore | None = None

    def open_table(self) -> FirestoreTable:
        assert self.firestore is not None
        return FirestoreTable(self.firestore.client(self.path.name))

    def close(self) -> None:
        """Leave the connections open, because all tests share the connections."""


@pytest.mark.parametrize("scenario", PLAYED, ids=lambda scenario: scenario.name)
def test_crash_on_firestore_keeps_the_scenarios_end(
    scenario: Scenario, firestore: Firestore, coverage_line: Callable[[str], None]
) -> None:
    def make_cluster(faults: Faults) -> FirestoreCluster:
        return FirestoreCluster(Path(firestore.new_database()), faults, firestore=firestore)

    coverage_line(crash_at_a_sample(scenario, STRIDE_FIRESTORE, make_cluster, "on Firestore"))
