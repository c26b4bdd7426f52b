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
from control_plane.checkpoint_stores.folder_files import remove_folder
from control_plane.state.table import Conflict, Page
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """Two trials that have ended, with three checkpoints each; the last ones have no metric."""
    return CollectionCluster.after_search(tmp_path)


def test_a_change_of_what_is_kept_deletes_the_rest(cluster: CollectionCluster) -> None:
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


def test_what_is_deleted_stays_deleted_when_more_is_kept_later(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 2)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "1/30", "2/20", "2/30"]
    cluster.request_retention(9, 9, 9)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "1/30", "2/20", "2/30"]


def test_without_a_row_one_query_is_all_that_is_read(
    cluster: CollectionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    query = cluster.table.query

    def count_query(partition: str, first: str, last: str, **options: Any) -> Page:
        asked.append(partition)
        return query(partition, first, last, **options)

    monkeypatch.setattr(cluster.table, "query", count_query)
    monkeypatch.setattr(cluster.table, "get", lambda key: pytest.fail(f"{key} was read"))
    assert not cluster.collector.collect()
    assert asked == [COLLECTIONS]


def test_it_never_holds_its_caller_up_and_goes_on_where_it_was(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    passes = 1
    while cluster.collector.collect(budget_seconds=0):
        passes += 1
        assert passes < 100
    # An inventory of two trials, six checkpoints marked for deletion and removed: each is a step at
    # least.
    assert passes > 10
    assert cluster.kept_checkpoints() == []


def test_a_collection_begun_by_a_process_that_died_is_finished_by_another(
    cluster: CollectionCluster,
) -> None:
    for lived in range(30):
        cluster.request_retention(0, lived % 2, 2)
        for _ in range(lived):
            cluster.collector.collect(budget_seconds=0)
        cluster = CollectionCluster(cluster.folder, cluster.table, cluster.now_ms, cluster.trials)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == []


def test_one_that_others_started_from_stays(cluster: CollectionCluster) -> None:
    cluster.pin(uuid_of(1, 10), 7)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/10"]
    assert cluster.engine.read_state(addresses.trial(1)).checkpoint is None


def mark_checkpoints_of_trial_1(cluster: CollectionCluster) -> None:
    """Lets the collector come so far that it has marked for deletion what trial 1 has to give up,
    and knows what trial 2 has: a step for each trial's inventory, and one for the first command.
    """
    for _ in range(3):
        cluster.collector.collect(budget_seconds=0)
    states = cluster.checkpoint_states()
    assert "DELETING" in [state for name, state in states.items() if name.startswith("1/")]
    assert {state for name, state in states.items() if name.startswith("2/")} == {"COMPLETED"}


def test_a_pin_taken_after_the_ranking_is_respected(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    mark_checkpoints_of_trial_1(cluster)
    cluster.pin(uuid_of(2, 10), 7)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["2/10"]


def test_what_was_validated_after_the_ranking_is_ranked_again(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 1, 0)
    mark_checkpoints_of_trial_1(cluster)
    # 2/30 had no metric when it was decided that it goes; now it is the best of its trial.
    cluster.add(2, 30, 0.05)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "2/30"]


def test_a_request_that_is_replaced_goes_no_further(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    mark_checkpoints_of_trial_1(cluster)
    cluster.request_retention(9, 9, 9)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["2/10", "2/20", "2/30"]


def test_a_request_replaced_between_its_last_reading_and_the_commit_goes_no_further(
    cluster: CollectionCluster,
) -> None:
    cluster.request_retention(0, 0, 0)
    row = cluster.table.query(COLLECTIONS, " ", "~").rows[0]
    cluster.request_retention(9, 9, 9)
    with pytest.raises(Conflict):
        list(execute_request(cluster.stores, cluster.experiment, decode_request(row)))
    assert len(cluster.kept_checkpoints()) == 6


def test_the_trial_of_a_deleted_checkpoint_goes_on_from_the_newest_that_is_left(
    cluster: CollectionCluster,
) -> None:
    cluster.set_latest(1, 30)
    cluster.request_retention(0, 1, 0)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/20", "2/20"]
    latest = cluster.engine.read_state(addresses.trial(1)).checkpoint
    assert latest is not None
    assert latest.steps_completed == 20


def test_two_collectors_at_once_do_no_harm(cluster: CollectionCluster) -> None:
    other = CollectionCluster(cluster.folder, cluster.table, cluster.now_ms, cluster.trials)
    cluster.request_retention(1, 0, 0)
    for _ in range(60):
        cluster.collector.collect(budget_seconds=0)
        other.collector.collect(budget_seconds=0)
    assert cluster.kept_checkpoints() == ["1/20"]
    assert cluster.rows(COLLECTIONS) == []


def test_empty_folders_of_an_ended_experiment_go_too(cluster: CollectionCluster) -> None:
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert list(cluster.root.iterdir()) == []


def test_uploads_that_were_cut_short_are_removed_at_the_end(cluster: CollectionCluster) -> None:
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


def test_a_checkpoint_recorded_elsewhere_costs_nobody_anything(cluster: CollectionCluster) -> None:
    precious = cluster.write("precious/file")
    for n, path in enumerate(
        ("precious/file", "..", "/", "", "1/2/1/00000002-0000-4000-8000-00000000001e", "1/1/1/x/..")
    ):
        cluster.add(1, 40 + n, path=path)
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert set(cluster.checkpoint_states().values()) == {"DELETED"}
    assert precious.exists()


def test_a_store_that_fails_is_tried_again_and_again(
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
    # Pauses of 2, 4, 8 and 16 seconds, in which there is nothing to do.
    assert tries == [0, 2, 6, 14, 30]
    assert cluster.checkpoint_states()["1/10"] == "DELETING"
    (cluster.folder / "away").rename(cluster.root)
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_one_folder_that_cannot_be_removed_holds_up_no_other(
    cluster: CollectionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny_trial_1(root: Path, parts: tuple[str, ...], *, prune: bool) -> Iterator[int]:
        if parts[:2] == ("1", "1"):
            raise PermissionError(errno.EACCES, "denied")
        return remove_folder(root, parts, prune=prune)

    monkeypatch.setattr("control_plane.checkpoint_stores.folder_files.remove_folder", deny_trial_1)
    cluster.request_retention(0, 0, 1)
    cluster.collector.collect(budget_seconds=60)
    states = cluster.checkpoint_states()
    assert (states["1/10"], states["2/10"]) == ("DELETING", "DELETED")
    monkeypatch.undo()
    cluster.work_off()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_an_experiment_that_cannot_be_collected_holds_up_no_other(
    cluster: CollectionCluster,
) -> None:
    nobodys = {"generation": 1, "retention": [0, 0, 0], "delete": False}
    cluster.put(COLLECTIONS, f"{99:012d}", nobodys)
    cluster.put(COLLECTIONS, removal_sort_key(98, uuid_of(1, 30)), 7)
    cluster.request_retention(0, 0, 1)
    for _ in range(10):
        cluster.collector.collect()
    assert cluster.kept_checkpoints() == ["1/30", "2/30"]


def test_what_a_trial_that_goes_on_uploads_is_left_alone(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment(2)
    uploading = "0000000a-0000-4000-8000-00000000000a"
    cluster.intend(1, 1, {"uuid": uploading})
    file = cluster.write(f"1/1/1/{uploading}/half")
    list(remove_incomplete_uploads(cluster.stores, cluster.experiment))
    assert file.exists()
    cluster.end_experiment()
    assert not file.exists()


def test_removals_of_many_experiments_are_all_found(cluster: CollectionCluster) -> None:
    # More rows of experiments before it than a page holds.
    for n in range(150):
        cluster.put(COLLECTIONS, removal_sort_key(2 + n % 3, f"{n:08x}"), 7)
    cluster.put(COLLECTIONS, removal_sort_key(9, "1"), 7)
    assert pending_requests(cluster.table) == {2: None, 3: None, 4: None, 9: None}


def test_requests_come_before_removals(cluster: CollectionCluster) -> None:
    cluster.request_checkpoint_deletion(1, 10)
    cluster.request_retention(0, 0, 1)
    for n in range(150):
        cluster.put(COLLECTIONS, removal_sort_key(0, f"{n:08x}"), 7)
    found = pending_requests(cluster.table)
    assert found.keys() == {0, 1}
    assert found[0] is None
    assert found[1] is not None
    assert found[1].retention == Retention(0, 0, 1)


def test_a_pause_that_a_clock_ahead_began_is_no_longer_than_any_other(
    cluster: CollectionCluster,
) -> None:
    cluster.root.rename(cluster.folder / "away")
    cluster.request_retention(0, 0, 1)
    cluster.now_ms += 86_400_000
    assert cluster.collector.collect(budget_seconds=60)
    cluster.now_ms -= 86_400_000
    assert cluster.collector.collect(budget_seconds=60)
    # That try failed at a time that is right.
    assert not cluster.collector.collect(budget_seconds=60)
