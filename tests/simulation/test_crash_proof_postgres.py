"""The proof of test_crash_proof on PostgreSQL: a sample of the crash points."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.postgres.state_table import PostgresTable
from simulator.stepped.stepped_cluster import Faults, SteppedCluster
from tests.emulators.postgresql import Postgresql
from tests.simulation.crash_points import STRIDE_DYNAMODB
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.test_crash_proof import crash_at_a_sample


@dataclass
class PostgresCluster(SteppedCluster):
    """A cluster on the table of PostgreSQL at `url`."""

    url: str = ""

    def open_table(self) -> PostgresTable:
        return PostgresTable(self.url, connections_max=2)


# The gate runs every third scenario here, and every scenario on SQLite.
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(item, marks=pytest.mark.nightly if n % 3 else (), id=item.name)
        for n, item in enumerate(item for item in SCENARIOS if not item.big)
    ],
)
def test_crash_on_postgres_keeps_the_scenarios_end(
    scenario: Scenario, postgres: Postgresql, coverage_line: Callable[[str], None]
) -> None:
    def make_cluster(faults: Faults) -> PostgresCluster:
        return PostgresCluster(Path(":memory:"), faults, url=postgres.new_schema())

    line = crash_at_a_sample(scenario, STRIDE_DYNAMODB, make_cluster, "on PostgreSQL")
    coverage_line(line)
