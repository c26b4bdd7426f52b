import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.records import Retention
from control_plane.checkpoint_gc.collection_request import decode_request, execute_request
from control_plane.checkpoint_gc.collector import pending_requests
from control_plane.checkpoint_gc.removal import remove_incomplete_uploads
from control_plane.checkpoint_stores.folder_files import FolderFiles
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Key, Page, Row
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with two ended trials of three checkpoints each; the last has no metric."""
    return CollectionCluster.after_search(tmp_path)


def test_changed_retention_deletes_unwanted_checkpoints(cluster: CollectionCluster) -> None:
    # Best of all 1/20 (0.1); best of each trial 1/20 and 2/20; latest of each 1/30 and 2/30.
    cluster.request_retention(1, 1, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "2/20"]
    assert cluster.checkpoint_states() == {
        "1/10": "DELETED",
        "1/20": "COMPLETED",
        "1/30": "DELETED",
        "2/10": "DELETED",
        "2/20": "COMPLETED",
        "2/30": "DELETED",
    }


def test_deleted_checkpoints_stay_deleted_under_a_larger_retention(
    cluster: CollectionCluster,
) -> None:
    cluster.request_retention(0, 0, 2)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "1/30", "2/20", "2/30"]
    cluster.request_retention(9, 9, 9)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "1/30", "2/20", "2/30"]


class NotingTable(SqliteTable):
    """A table that notes the partitions of queries and the keys of other reads."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.partitions: list[str] = []
        self.keys: list[Key] = []

    def query(self, partition: str, first: str, last: str, **options: Any) -> Page:
        self.partitions.append(partition)
        return super().query(partition, first, last, **options)

    def get(self, key: Key) -> Row | None:
        self.keys.append(key)
        return super().get(key)


class DenyingFiles(FolderFiles):
    """Files that refuse the removal of the folders of trial 1 while `is_denying`."""

    is_denying = True

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        if self.is_denying and parts[:2] == ("1", "1"):
            raise PermissionError(errno.EACCES, "denied")
        return super().remove_folder(parts, prune=prune)


def test_idle_collector_reads_a_single_query(tmp_path: Path) -> None:
    table = NotingTable()
    cluster = CollectionCluster(tmp_path, table)
    cluster.run_search()
    table.partitions.clear()
    table.keys.clear()
    assert not cluster.collector.collect()
    assert (table.partitions, table.keys) == ([COLLECTIONS], [])


def test_collector_continues_after_passes_without_a_budget(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    passes = 1
    while cluster.collector.collect(budget_seconds=0):
        passes += 1
        assert passes < 100
    # Two inventories, and six checkpoints that are marked and removed, take at least a step each.
    assert passes > 10
    assert cluster.kept_checkpoints() == []


def test_new_process_finishes_an_interrupted_collection(
    cluster: CollectionCluster,
) -> None:
    for passes in range(30):
        cluster.request_retention(0, passes % 2, 2)
        for _ in range(passes):
            cluster.collector.collect(budget_seconds=0)
        cluster = CollectionCluster(cluster.folder, cluster.table, cluster.now_ms, cluster.trials)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == []


def test_pinned_checkpoint_is_not_collected(cluster: CollectionCluster) -> None:
    cluster.pin(uuid_of(1, 10), 7)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/10"]
    assert cluster.engine.read_state(addresses.trial(1)).checkpoint is None


def mark_checkpoints_of_trial_1(cluster: CollectionCluster) -> None:
    """Run three steps: checkpoints of trial 1 are marked for deletion, of trial 2 only listed.

    Two steps take the inventories of the trials, and a step sends the first command.
    """
    for _ in range(3):
        cluster.collector.collect(budget_seconds=0)
    states = cluster.checkpoint_states()
    assert "DELETING" in [state for name, state in states.items() if name.startswith("1/")]
    assert {state for name, state in states.items() if name.startswith("2/")} == {"COMPLETED"}


def test_pin_after_the_ranking_is_respected(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    mark_checkpoints_of_trial_1(cluster)
    cluster.pin(uuid_of(2, 10), 7)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["2/10"]


def test_checkpoint_validated_after_the_ranking_is_ranked_again(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 1, 0)
    mark_checkpoints_of_trial_1(cluster)
    # The ranking would delete 2/30 without a metric; with the metric, 2/30 is the trial's best.
    cluster.add(2, 30, 0.05)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "2/30"]


def test_replaced_request_deletes_no_more(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    mark_checkpoints_of_trial_1(cluster)
    cluster.request_retention(9, 9, 9)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["2/10", "2/20", "2/30"]


def test_request_replaced_before_the_commit_conflicts(
    cluster: CollectionCluster,
) -> None:
    cluster.request_retention(0, 0, 0)
    row = cluster.table.query(COLLECTIONS, " ", "~").rows[0]
    cluster.request_retention(9, 9, 9)
    with pytest.raises(Conflict):
        list(execute_request(cluster.stores, cluster.experiment, decode_request(row)))
    assert len(cluster.kept_checkpoints()) == 6


def test_trial_falls_back_to_the_newest_remaining_checkpoint(
    cluster: CollectionCluster,
) -> None:
    cluster.set_latest(1, 30)
    cluster.request_retention(0, 1, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "2/20"]
    latest = cluster.engine.read_state(addresses.trial(1)).checkpoint
    assert latest is not None
    assert latest.steps_completed == 20


def test_concurrent_collectors_reach_the_same_result(cluster: CollectionCluster) -> None:
    other = CollectionCluster(cluster.folder, cluster.table, cluster.now_ms, cluster.trials)
    cluster.request_retention(1, 0, 0)
    for _ in range(60):
        cluster.collector.collect(budget_seconds=0)
        other.collector.collect(budget_seconds=0)
    assert cluster.kept_checkpoints() == ["1/20"]
    assert cluster.rows(COLLECTIONS) == []


def test_empty_folders_of_an_ended_experiment_are_removed(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert list(cluster.root.iterdir()) == []


def test_interrupted_uploads_are_removed_after_the_experiment(cluster: CollectionCluster) -> None:
    began = "0000000a-0000-4000-8000-00000000000a"
    kept = "00000001-0000-4000-8000-00000000001e"
    cluster.intend(1, 1, {"uuid": began, "path": f"1/2/1/{kept}"})
    cluster.intend(1, 1, {"uuid": kept})
    cluster.intend(1, 1, {"uuid": "../../2"})
    cluster.intend(1, 1, {"uuid": 7})
    cluster.write(f"1/1/1/{began}/half")
    cluster.request_retention(0, 0, 1)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]
    assert not (cluster.root / f"1/1/1/{began}").exists()


def test_checkpoint_with_a_foreign_path_deletes_no_foreign_files(
    cluster: CollectionCluster,
) -> None:
    precious = cluster.write("precious/file")
    for n, path in enumerate(
        ("precious/file", "..", "/", "", "1/2/1/00000002-0000-4000-8000-00000000001e", "1/1/1/x/..")
    ):
        cluster.add(1, 40 + n, path=path)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert set(cluster.checkpoint_states().values()) == {"DELETED"}
    assert precious.exists()


def test_failing_store_is_retried_with_growing_pauses(
    cluster: CollectionCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.root.rename(cluster.folder / "away")
    cluster.request_retention(0, 0, 1)
    tries = []
    for second in range(40):
        caplog.clear()
        did_something = cluster.collector.collect(budget_seconds=60)
        assert did_something == ("No such file or directory" in caplog.text)
        cluster.now_ms += 1000
        if "No such file or directory" in caplog.text:
            tries.append(second)
    # Pauses of 2, 4, 8 and 16 seconds without any collection.
    assert tries == [0, 2, 6, 14, 30]
    assert cluster.checkpoint_states()["1/10"] == "DELETING"
    (cluster.folder / "away").rename(cluster.root)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_undeletable_folder_does_not_block_other_folders(cluster: CollectionCluster) -> None:
    files = DenyingFiles(cluster.root)
    cluster.replace_files(files)
    cluster.request_retention(0, 0, 1)
    cluster.collector.collect(budget_seconds=60)
    states = cluster.checkpoint_states()
    assert (states["1/10"], states["2/10"]) == ("DELETING", "DELETED")
    files.is_denying = False
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_uncollectable_experiment_does_not_block_other_experiments(
    cluster: CollectionCluster,
) -> None:
    request = {"generation": 1, "retention": [0, 0, 0], "delete": False}
    cluster.put(COLLECTIONS, f"{99:012d}", request)
    cluster.put(COLLECTIONS, removal_sort_key(98, uuid_of(1, 30)), 7)
    cluster.request_retention(0, 0, 1)
    for _ in range(10):
        cluster.collector.collect()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_uploads_of_active_trials_are_not_removed(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(2)
    uploading = "0000000a-0000-4000-8000-00000000000a"
    cluster.intend(1, 1, {"uuid": uploading})
    file = cluster.write(f"1/1/1/{uploading}/half")
    list(remove_incomplete_uploads(cluster.stores, cluster.experiment))
    assert file.exists()
    cluster.end_experiment()
    assert not file.exists()


def test_pending_removals_are_found_across_pages(cluster: CollectionCluster) -> None:
    # Experiment 9 comes after more rows than a page has.
    for n in range(150):
        cluster.put(COLLECTIONS, removal_sort_key(2 + n % 3, f"{n:08x}"), 7)
    cluster.put(COLLECTIONS, removal_sort_key(9, "1"), 7)
    assert pending_requests(cluster.table) == {2: None, 3: None, 4: None, 9: None}


def test_pending_requests_replace_removals_of_the_experiment(cluster: CollectionCluster) -> None:
    cluster.request_checkpoint_deletion(1, 10)
    cluster.request_retention(0, 0, 1)
    for n in range(150):
        cluster.put(COLLECTIONS, removal_sort_key(0, f"{n:08x}"), 7)
    pending = pending_requests(cluster.table)
    assert pending.keys() == {0, 1}
    assert pending[0] is None
    assert pending[1] is not None
    assert pending[1].retention == Retention(0, 0, 1)


def test_pause_begun_by_a_fast_clock_ends_early(
    cluster: CollectionCluster,
) -> None:
    cluster.root.rename(cluster.folder / "away")
    cluster.request_retention(0, 0, 1)
    cluster.now_ms += 86_400_000
    assert cluster.collector.collect(budget_seconds=60)
    cluster.now_ms -= 86_400_000
    assert cluster.collector.collect(budget_seconds=60)
    # The second try failed at a correct time, so that the pause holds.
    assert not cluster.collector.collect(budget_seconds=60)
