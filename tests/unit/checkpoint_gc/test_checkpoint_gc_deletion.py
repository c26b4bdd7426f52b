from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.actors.step import CommandRefused
from control_plane.checkpoint_gc.unrecorded_checkpoints import find_unrecorded
from control_plane.state.table import Expect, Key, Put
from tests.unit.checkpoint_gc.collection_cluster import (
    CLUSTER_ID,
    EXPERIMENT,
    CollectionCluster,
    uuid_of,
)


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with two ended trials of three checkpoints each; the last has no metric."""
    return CollectionCluster.after_search(tmp_path)


def test_deletion_removes_all_rows_and_files_of_the_experiment(cluster: CollectionCluster) -> None:
    cluster.add_other_data()
    of_another = cluster.rows(addresses.trial(9))
    key = Key(EXPERIMENT, "B#000000000001000.1.2")
    cluster.table.commit((Put(key, 1, b"{}", Expect.ABSENT),))
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert cluster.rows(addresses.trial(9)) == of_another
    files = [path for path in cluster.root.rglob("*") if path.is_file()]
    assert files == [cluster.root / "tensorboard/2/9/events"]
    for address in (EXPERIMENT, addresses.trial(1), addresses.trial(2)):
        kinds = {sort.partition("#")[0] for sort in cluster.rows(address)}
        assert kinds <= {"M", "Z"}
    assert cluster.rows("checkpoints") == []
    assert cluster.objects_left() == ["logs/9/9.1/0-4", "metrics/9/1234abcd"]


def test_deletion_removes_unrecorded_checkpoints_of_the_cluster(cluster: CollectionCluster) -> None:
    own, others = "0000000a-0000-4000-8000-000000000001", "0000000a-0000-4000-8000-000000000002"
    half, old = "0000000a-0000-4000-8000-000000000003", "0000000a-0000-4000-8000-000000000004"
    cluster.write(f"1/1/2/{own}/manifest.json").write_text(f'{{"cluster_id": "{CLUSTER_ID}"}}')
    cluster.write(f"1/1/2/{own}/deep/weights")
    # Checkpoints of a cluster that shares the store, of an upload that may still run, and of
    # a manifest without a cluster.
    cluster.write(f"1/2/1/{others}/manifest.json").write_text('{"cluster_id": "another"}')
    cluster.write(f"1/2/1/{half}/weights")
    cluster.write(f"1/2/1/{old}/manifest.json")
    unrecorded = [
        checkpoint for n in (1, 2) for checkpoint in find_unrecorded(cluster.stores, 1, n)
    ]
    assert [
        (checkpoint.uuid, checkpoint.is_complete, checkpoint.is_own) for checkpoint in unrecorded
    ] == [
        (own, True, True),
        (others, True, False),
        (half, False, False),
        (old, True, False),
    ]
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    left = {path.parent.name for path in cluster.root.rglob("*") if path.is_file()}
    assert left == {others, half, old}


@pytest.mark.parametrize("manifest", ["", "[]", "[" * 100_000, '{"cluster_id": 7}', "\xff"])
def test_unreadable_manifest_has_no_owner(cluster: CollectionCluster, manifest: str) -> None:
    uuid = "0000000a-0000-4000-8000-000000000001"
    cluster.write(f"1/1/1/{uuid}/manifest.json").write_text(manifest)
    [checkpoint] = find_unrecorded(cluster.stores, 1, 1)
    assert (checkpoint.is_complete, checkpoint.is_own) == (True, False)


def test_pin_rows_of_deleted_checkpoints_expire(
    cluster: CollectionCluster,
) -> None:
    cluster.request_deletion()
    cluster.work_off()
    dues = {row.due_ms for row in cluster.table.query("pins", " ", "~").rows}
    assert len(cluster.rows("pins")) == 6
    assert None not in dues


def test_experiment_with_a_pinned_checkpoint_is_not_deleted(cluster: CollectionCluster) -> None:
    cluster.pin(uuid_of(2, 10), 7)
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in cluster.experiment.message
    assert len(cluster.kept_checkpoints()) == 6


def test_failed_deletion_is_reported_and_can_be_repeated(
    cluster: CollectionCluster,
) -> None:
    cluster.root.rename(cluster.folder / "away")
    cluster.request_deletion()
    while cluster.experiment.status == "DELETING":
        cluster.collector.collect()
        cluster.now_ms += 1000
    assert cluster.experiment.status == "DELETE_FAILED"
    assert "No such file or directory" in cluster.experiment.message
    (cluster.folder / "away").rename(cluster.root)
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert list(cluster.root.iterdir()) == []


def test_repeated_deletion_request_has_one_effect(cluster: CollectionCluster) -> None:
    cluster.request_deletion()
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"


def test_experiment_without_files_is_deleted_without_a_store(
    tmp_path: Path,
) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(1)
    cluster.end_experiment()
    cluster.root.rmdir()
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"


def test_pin_during_a_deletion_fails_the_deletion(cluster: CollectionCluster) -> None:
    cluster.request_deletion()
    # A step for each trial's inventory, and a step for the deletions of trial 1.
    for _ in range(3):
        cluster.collector.collect(budget_seconds=0)
    cluster.pin(uuid_of(2, 10), 7)
    cluster.work_off()
    assert cluster.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in cluster.experiment.message
    assert cluster.kept_checkpoints() == ["2/10"]


def test_warm_start_source_is_deleted_after_the_started_experiment(
    cluster: CollectionCluster,
) -> None:
    cluster.warm_start(2, uuid_of(1, 20))
    cluster.request_retention(0, 0, 1)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "1/30", "2/30"]
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETE_FAILED"
    cluster.request_deletion(2)
    cluster.work_off()
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert cluster.kept_checkpoints() == []


def test_warm_start_from_a_deleted_checkpoint_is_refused(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 1)
    cluster.work_off()
    with pytest.raises(CommandRefused, match="was deleted"):
        cluster.warm_start(2, uuid_of(1, 20))


def test_deletion_removes_parts_of_the_search(cluster: CollectionCluster) -> None:
    kept = Key(EXPERIMENT, "P#search/tried/0")
    cluster.table.commit([Put(kept, 1, b"[]", Expect.ABSENT)])
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert kept.sort not in cluster.rows(EXPERIMENT)
