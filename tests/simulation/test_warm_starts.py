"""Experiments that start from a checkpoint, and the collector that wants it gone, at once."""

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
    """Experiment 1 has completed; its one trial has a checkpoint."""
    cluster.add_agent("a", 1, train_in_rounds)
    cluster.submit(1)
    cluster.run_to_rest()
    return cluster


def source(cluster: SteppedCluster) -> CheckpointRef:
    found: CheckpointRef = cluster.checker.actor_state("trial#1").checkpoint
    return found


def warm_start_submission(cluster: SteppedCluster, experiment_id: int) -> ExperimentSubmitted:
    return replace(submission(experiment_id, 1), warm_start=source(cluster))


def racing_engine(cluster: SteppedCluster, address: str, act: Callable[[], object]) -> Engine:
    """An engine before whose first commit to `address` something else happens."""

    def is_its_commit(writes: Sequence[Write]) -> bool:
        return any(write.key.partition == address for write in writes)

    table = InterleavingTable(cluster.engine.table, act, is_its_commit)
    return Engine(table, lambda: cluster.now_ms, UNHURRIED)


def pinning_experiments(cluster: SteppedCluster) -> tuple[int, ...]:
    row = cluster.engine.table.get(Key(PINS, source(cluster).uuid))
    return decode_pin(row.body).experiments if row else ()


def state_of(cluster: SteppedCluster, uuid: str) -> CheckpointState:
    record = cluster.checker.part("trial#1", CHECKPOINT_PARTS + uuid)
    assert isinstance(record, CheckpointRecord)
    return record.state


def test_two_experiments_that_start_from_one_checkpoint_at_once_both_pin_it(
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


def test_a_checkpoint_that_is_let_go_at_the_last_moment_starts_nothing(
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


def test_a_checkpoint_that_something_starts_from_at_the_last_moment_stays(
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
