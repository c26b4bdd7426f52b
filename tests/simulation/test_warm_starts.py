"""Experiments that start from a checkpoint, and the collector that wants it gone, at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.records import CheckpointRef
from control_plane.actors.step import Refused
from control_plane.actors.trial_checkpoints import (
    CHECKPOINT_PARTS,
    PINS,
    CheckpointRecord,
    CheckpointState,
    read_pin,
)
from control_plane.actors.trial_messages import CheckpointsUnwanted
from control_plane.dispatch.engine import Engine
from control_plane.state.faults import InterleavingTable
from control_plane.state.table import Key, Write
from tests.simulation.cluster import Cluster, submitted
from tests.simulation.scenarios import train_in_turns


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Experiment 1 has completed; its one trial has a checkpoint."""
    made = Cluster(tmp_path / "table.db")
    made.add_pool()
    made.add_agent("a", 1, train_in_turns)
    made.submit(1)
    made.settle()
    yield made
    made.close()


def source(cluster: Cluster) -> CheckpointRef:
    found: CheckpointRef = cluster.shadow.state("trial#1").checkpoint
    return found


def starting(cluster: Cluster, experiment_id: int) -> ExperimentSubmitted:
    return replace(submitted(experiment_id, 1), warm_start=source(cluster))


def racing(cluster: Cluster, address: str, act: Callable[[], object]) -> Engine:
    """An engine before whose first commit to `address` something else happens."""

    def is_its_commit(writes: Sequence[Write]) -> bool:
        return any(write.key.partition == address for write in writes)

    table = InterleavingTable(cluster.engine.table, act, is_its_commit)
    return Engine(table, lambda: cluster.now_ms)


def pinned_by(cluster: Cluster) -> tuple[int, ...]:
    row = cluster.engine.table.get(Key(PINS, source(cluster).uuid))
    return read_pin(row.body).by if row else ()


def state_of(cluster: Cluster, uuid: str) -> CheckpointState:
    record = cluster.shadow.part("trial#1", CHECKPOINT_PARTS + uuid)
    assert isinstance(record, CheckpointRecord)
    return record.state


def test_two_experiments_that_start_from_one_checkpoint_at_once_both_pin_it(
    cluster: Cluster,
) -> None:
    other = cluster.boot()
    engine = racing(
        cluster,
        "experiment#2",
        lambda: other.engine.command("experiment#3", starting(cluster, 3)),
    )
    engine.command("experiment#2", starting(cluster, 2))
    assert sorted(pinned_by(cluster)) == [2, 3]
    other.table.close()


def test_a_checkpoint_that_is_let_go_at_the_last_moment_starts_nothing(cluster: Cluster) -> None:
    other, uuid = cluster.boot(), source(cluster).uuid
    message = starting(cluster, 2)
    engine = racing(
        cluster,
        "experiment#2",
        lambda: other.engine.command("trial#1", CheckpointsUnwanted((uuid,))),
    )
    with pytest.raises(Refused, match=f"checkpoint {uuid} was deleted") as refused:
        engine.command("experiment#2", message)
    assert refused.value.code == "conflict"
    assert cluster.shadow.state("experiment#2") is None
    assert state_of(cluster, uuid) is CheckpointState.DELETING
    other.table.close()


def test_a_checkpoint_that_something_starts_from_at_the_last_moment_stays(
    cluster: Cluster,
) -> None:
    other, uuid = cluster.boot(), source(cluster).uuid
    engine = racing(
        cluster,
        "trial#1",
        lambda: other.engine.command("experiment#2", starting(cluster, 2)),
    )
    assert engine.command("trial#1", CheckpointsUnwanted((uuid,))) == ()
    assert state_of(cluster, uuid) is CheckpointState.COMPLETED
    assert pinned_by(cluster) == (2,)
    other.table.close()
