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
    """Two trials that have ended, with three checkpoints each; the last ones have no metric."""
    return CollectionCluster.after_search(tmp_path)


def test_deleting_the_experiment_leaves_nothing_of_it(cluster: CollectionCluster) -> None:
    cluster.add_other_data()
    of_another = cluster.rows(addresses.trial(9))
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


def test_deleting_finds_what_was_stored_and_never_recorded(cluster: CollectionCluster) -> None:
    own, others = "0000000a-0000-4000-8000-000000000001", "0000000a-0000-4000-8000-000000000002"
    half, old = "0000000a-0000-4000-8000-000000000003", "0000000a-0000-4000-8000-000000000004"
    cluster.write(f"1/1/2/{own}/manifest.json").write_text(f'{{"cluster_id": "{CLUSTER_ID}"}}')
    cluster.write(f"1/1/2/{own}/deep/weights")
    # Of a cluster that shares the store, of an upload that may still be under way there, and of
    # one that did not say yet whose it is.
    cluster.write(f"1/2/1/{others}/manifest.json").write_text('{"cluster_id": "another"}')
    cluster.write(f"1/2/1/{half}/weights")
    cluster.write(f"1/2/1/{old}/manifest.json")
    found = [one for n in (1, 2) for one in find_unrecorded(cluster.stores, 1, n)]
    assert [(one.uuid, one.is_complete, one.is_own) for one in found] == [
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
def test_a_manifest_that_cannot_be_read_is_nobodys(
    cluster: CollectionCluster, manifest: str
) -> None:
    uuid = "0000000a-0000-4000-8000-000000000001"
    cluster.write(f"1/1/1/{uuid}/manifest.json").write_text(manifest)
    [found] = find_unrecorded(cluster.stores, 1, 1)
    assert (found.is_complete, found.is_own) == (True, False)


def test_the_rows_that_say_that_a_checkpoint_is_gone_expire_with_the_experiment(
    cluster: CollectionCluster,
) -> None:
    cluster.request_deletion()
    cluster.work_off()
    dues = {row.due_ms for row in cluster.table.query("pins", " ", "~").rows}
    assert len(cluster.rows("pins")) == 6
    assert None not in dues


def test_an_experiment_others_started_from_is_not_touched(cluster: CollectionCluster) -> None:
    cluster.pin(uuid_of(2, 10), 7)
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in cluster.experiment.message
    assert len(cluster.kept_checkpoints()) == 6


def test_a_deletion_that_fails_is_reported_and_may_be_asked_for_again(
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


def test_deletion_asked_for_twice_is_done_once(cluster: CollectionCluster) -> None:
    cluster.request_deletion()
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"


def test_an_experiment_without_files_is_deleted_though_its_store_was_never_made(
    tmp_path: Path,
) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(1)
    cluster.end_experiment()
    cluster.root.rmdir()
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"


def test_a_pin_taken_while_it_is_deleted_ends_the_deletion(cluster: CollectionCluster) -> None:
    cluster.request_deletion()
    # A step for each trial's inventory, and one for what trial 1 has to give up.
    for _ in range(3):
        cluster.collector.collect(budget_seconds=0)
    cluster.pin(uuid_of(2, 10), 7)
    cluster.work_off()
    assert cluster.experiment.status == "DELETE_FAILED"
    assert uuid_of(2, 10) in cluster.experiment.message
    assert cluster.kept_checkpoints() == ["2/10"]


def test_the_source_of_a_warm_start_is_deleted_after_what_started_from_it(
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


def test_nothing_starts_from_a_checkpoint_that_is_going(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 1)
    cluster.work_off()
    with pytest.raises(CommandRefused, match="was deleted"):
        cluster.warm_start(2, uuid_of(1, 20))


def test_what_the_search_kept_goes_too(cluster: CollectionCluster) -> None:
    kept = Key(EXPERIMENT, "P#search/tried/0")
    cluster.table.commit([Put(kept, 1, b"[]", Expect.ABSENT)])
    cluster.request_deletion()
    cluster.work_off()
    assert cluster.experiment.status == "DELETED"
    assert kept.sort not in cluster.rows(EXPERIMENT)
