"""The proof of test_crash_proof on DynamoDB: a sample of the crash points."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.state.table import StateTable
from simulator.faults.table_faults import CrashingTable, CrashMoment
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.emulators.ministack import Ministack
from tests.simulation.crash_points import SEED, STRIDE_DYNAMODB, WHENS, crash_points
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.test_crash_proof import expect_the_same_end, run_without_crash


@dataclass
class DynamoCluster(SteppedCluster):
    """A cluster on the table that `path` names."""

    aws: Ministack | None = None

    def open_table(self) -> DynamoDbTable:
        assert self.aws is not None
        return DynamoDbTable(self.aws.client("dynamodb"), self.path.name)


@pytest.mark.parametrize(
    "scenario", [item for item in SCENARIOS if not item.big], ids=lambda scenario: scenario.name
)
def test_a_crash_on_dynamodb_changes_nothing(
    scenario: Scenario, aws: Ministack, coverage_line: Callable[[str], None]
) -> None:
    began = time.perf_counter()
    drawn = Random(f"{SEED} {scenario.name}")
    points = crash_points(run_without_crash(scenario)[1], (), STRIDE_DYNAMODB, drawn)
    for n in points:
        _crash_once(scenario, n, drawn.choice(WHENS), aws)
    seconds = time.perf_counter() - began
    coverage_line(
        f"{scenario.name:10} {'on DynamoDB':22} {len(points):4} crashes, {seconds:5.1f} s"
    )


def _crash_once(scenario: Scenario, n: int, when: CrashMoment, aws: Ministack) -> None:
    def faults(table: StateTable, process: int) -> StateTable:
        return CrashingTable(table, 0 if process else n, when)

    name = f"crash-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    cluster = DynamoCluster(Path(name), faults, aws=aws)
    expect_the_same_end(scenario, cluster, f"crash {when} commit {n}, CRASH_SEED={SEED}")
    aws.client("dynamodb").delete_table(TableName=name)
