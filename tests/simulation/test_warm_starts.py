"""Tests of races between warm starts from a checkpoint and deletions of the checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.messages.trial import CheckpointDeletionRequested
from control_plane.actors.pins import PINS, decode_pin
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.engine.engine import Engine
from control_plane.state.table import Key, Write
from simulator.faults.table_faults import InterleavingTable
from simulator.stepped.small_search import submission
from simulator.stepped.stepped_cluster import SteppedCluster
from tests.engine_timing import UNHURRIED
from tests.simulation.scenarios import train_in_rounds


@pytest.fixture
def cluster(cluster: SteppedCluster) -> SteppedCluster:
    """Return a cluster with a completed experiment 1 of one trial, which has a checkpoint."""
    cluster.add_agent("a", 1, train_in_rounds)
    cluster.submit(1)
    cluster.run_to_rest()
    return cluster


def source(cluster: SteppedCluster) -> CheckpointRef:
    checkpoint: CheckpointRef = cluster.checker.actor_state("trial#1").checkpoint
    return checkpoint


def warm_start_submission(cluster: SteppedCluster, experiment_id: int) -> ExperimentSubmitted:
    return replace(submission(experiment_id, 1), warm_start=source(cluster))


def racing_engine(cluster: SteppedCluster, address: str, act: Callable[[], object]) -> Engine:
    """Return an engine that runs `act` before its first commit to `address`."""

    def is_commit_to_address(writes: Sequence[Write]) -> bool:
        return any(write.key.partition == address for write in writes)

    table = InterleavingTable(cluster.engine.table, act, is_commit_to_address)
    return Engine(table, lambda: cluster.now_ms, UNHURRIED)


def pinning_experiments(cluster: SteppedCluster) -> tuple[int, ...]:
    row = cluster.engine.table.get(Key(PINS, source(cluster).uuid))
    return decode_pin(row.body).experiments if row else ()


def state_of(cluster: SteppedCluster, uuid: str) -> CheckpointState:
    record = cluster.checker.part("trial#1", CHECKPOINT_PARTS + uuid)
    assert isinstance(record, CheckpointRecord)
    return record.state


def test_concurrent_warm_starts_pin_the_checkpoint_twice(
    cluster: SteppedCluster,
) -> None:
    other = cluster.boot()
    engine = racing_engine(
        cluster,
        "experiment#2",
        lambda: other.engine.execute_command("experiment#3", warm_start_submission(cluster, 3)),
    )
    engine.execute_command("experiment#2", warm_start_submission(cluster, 2))
    assert sorted(pinning_experiments(cluster)) == [2, 3]
    other.rows.close()


def test_warm_start_is_refused_if_the_checkpoint_is_deleted_concurrently(
    cluster: SteppedCluster,
) -> None:
    other, uuid = cluster.boot(), source(cluster).uuid
    message = warm_start_submission(cluster, 2)
    engine = racing_engine(
        cluster,
        "experiment#2",
        lambda: other.engine.execute_command("trial#1", CheckpointDeletionRequested((uuid,))),
    )
    with pytest.raises(CommandRefused, match=f"checkpoint {uuid} was deleted") as refused:
        engine.execute_command("experiment#2", message)
    assert refused.value.code == "conflict"
    assert cluster.checker.actor_state("experiment#2") is None
    assert state_of(cluster, uuid) is CheckpointState.DELETING
    other.rows.close()


def test_checkpoint_pinned_by_a_concurrent_warm_start_is_kept(
    cluster: SteppedCluster,
) -> None:
    other, uuid = cluster.boot(), source(cluster).uuid
    engine = racing_engine(
        cluster,
        "trial#1",
        lambda: other.engine.execute_command("experiment#2", warm_start_submission(cluster, 2)),
    )
    assert engine.execute_command("trial#1", CheckpointDeletionRequested((uuid,))) == ()
    assert state_of(cluster, uuid) is CheckpointState.COMPLETED
    assert pinning_experiments(cluster) == (2,)
    other.rows.close()
