"""The proof of test_crash_proof on DynamoDB: a sample of the crash points."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.aws.state_table import DynamoDbTable, table_definition
from simulator.stepped.stepped_cluster import Faults, SteppedCluster
from tests.emulators.ministack import Ministack
from tests.simulation.crash_points import STRIDE_DYNAMODB
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.test_crash_proof import crash_at_a_sample


@dataclass
class DynamoCluster(SteppedCluster):
    """A cluster on the DynamoDB table named by `path`; `close` deletes the table."""

    aws: Ministack | None = None

    def open_table(self) -> DynamoDbTable:
        assert self.aws is not None
        return DynamoDbTable(self.aws.client("dynamodb"), self.path.name)

    def close(self) -> None:
        super().close()
        assert self.aws is not None
        self.aws.client("dynamodb").delete_table(TableName=self.path.name)


# The gate runs every third scenario here, and every scenario on SQLite.
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(item, marks=pytest.mark.nightly if n % 3 else (), id=item.name)
        for n, item in enumerate(item for item in SCENARIOS if not item.big)
    ],
)
def test_crash_on_dynamodb_keeps_the_scenarios_end(
    scenario: Scenario, aws: Ministack, coverage_line: Callable[[str], None]
) -> None:
    def make_cluster(faults: Faults) -> DynamoCluster:
        name = f"crash-{uuid.uuid4().hex}"
        aws.client("dynamodb").create_table(**table_definition(name))
        return DynamoCluster(Path(name), faults, aws=aws)

    coverage_line(crash_at_a_sample(scenario, STRIDE_DYNAMODB, make_cluster, "on DynamoDB"))
