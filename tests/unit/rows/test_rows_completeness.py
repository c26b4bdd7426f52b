"""All rows that a cluster stores belong to declared families, and are due only as declared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from control_plane.rows.registry import ROW_TYPES, find_row_type
from control_plane.rows.row_type import RowType
from control_plane.state.table import Put, Write
from simulator.faults.fault_rates import NO_FAULTS
from simulator.seeded.simulated_cluster import ClusterSize, SimulatedCluster
from tests.unit.rows.undeclared_rows import find_undeclared

# Families that simulated clusters do not store: writers are users, other clouds and embedded
# clusters. `build_cluster` of tests/unit/api checks the rows of all tests with an API.
NOT_SIMULATED = frozenset(
    {
        "agent credential",
        "alarm",
        "awaited suggestion",
        "cluster configuration",
        "cluster id",
        "dead letter",
        "deployed configuration",
        "dropped mail",
        "duty",
        "edit of checkpoint metadata",
        "edit of trial metadata",
        "environment",
        "experiment view",
        "webhook",
        "webhook routes",
        "event",
        "delivery",
        "failed sync",
        "fork",
        "hourly cost",
        "idempotency key of an effect",
        "identity",
        "incarnation",
        "job id",
        "last call of a search method",
        "log chunk",
        "metadata term",
        "metrics of a rank",
        "moves of jobs",
        "model version",
        "notice",
        "place of the objects",
        "pool configuration",
        "registered model",
        "relay",
        "report",
        "report text",
        "schedule",
        "scheduled submission",
        "server",
        "shared secret",
        "sign-in code",
        "spans of a run",
        "spilled outbox",
        "state mark",
        "time of a schedule",
        "tunnel",
        "agent user",
        "template",
        "token",
        "token holder",
        "token record",
        "trial metadata",
        "upload session",
        "usage of a day",
    }
)


def test_simulated_cluster_stores_only_declared_rows(tmp_path: Path) -> None:
    rates = replace(NO_FAULTS, losses_hourly=4)
    size = ClusterSize(experiments=4, pools=2, machines_max=4, hours=2)
    cluster = SimulatedCluster(1, rates, size, tmp_path)
    stored: set[RowType | None] = set()
    undeclared: list[str] = []
    apply_commit = cluster.checker.apply_commit

    def record_commit(writes: Sequence[Write]) -> None:
        puts = [write for write in writes if isinstance(write, Put)]
        undeclared.extend(find_undeclared(puts))
        stored.update(find_row_type(*put.key) for put in puts)
        apply_commit(writes)

    cluster.checker.apply_commit = record_commit  # type: ignore[method-assign]
    cluster.run()
    assert undeclared == []
    missing = {row.name for row in ROW_TYPES if row not in stored} - NOT_SIMULATED
    assert not missing, f"the simulation stores no {missing}: add the names to NOT_SIMULATED"
