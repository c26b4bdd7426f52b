"""Test of a whole cluster on the simulated Compute Engine with repeated preemptions."""

from pathlib import Path

from bench.worlds import WARNED
from simulator.seeded.simulated_cluster import ClusterSize
from tests.simulation.compute_engine_cluster import ComputeEngine, ComputeEngineCluster

SEED = 5


def test_thirty_second_notices_end_in_reported_checkpoints(
    tmp_path: Path,
) -> None:
    cluster = ComputeEngineCluster(SEED, WARNED, ClusterSize(), tmp_path)
    cluster.run()
    due = cluster.process_environment.due_checkpoints
    assert len(due) >= 5
    assert cluster.invariants.count_known_checkpoints(due) == len(due)
    # The provider launched machines and deleted some; the project preempted others.
    assert isinstance(cluster.cloud, ComputeEngine)
    project = cluster.cloud.project
    assert {"bulkInsert", "getOperation", "deleteInstance"} <= set(project.calls)
    ends = [
        operation
        for operation in project.operations
        if operation.kind == "compute.instances.preempted"
    ]
    assert len(ends) >= 10
    assert not project.billed_machines()
