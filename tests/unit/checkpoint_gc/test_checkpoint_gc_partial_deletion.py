"""Partial deletion of a checkpoint: chosen files, kept files, and refusals."""

from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.actors.messages.trial_deletions import PartialDeletionRequested
from control_plane.actors.pins import PINS, decode_pin
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS, CheckpointRecord
from control_plane.checkpoint_gc.collector import pending_requests
from control_plane.state.table import Key
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of

TRIAL, STEPS = 1, 10
UUID = uuid_of(TRIAL, STEPS)
FOLDER = f"1/{TRIAL}/1/{UUID}"


@pytest.fixture
def cluster(tmp_path: Path) -> CollectionCluster:
    """A cluster with two ended trials; the first checkpoint of trial 1 has four files."""
    cluster = CollectionCluster.after_search(tmp_path)
    for name in ("weights", "optimizer/a", "optimizer/b", "code/c"):
        cluster.write(f"{FOLDER}/{name}")
    return cluster


def request(
    cluster: CollectionCluster,
    *patterns: str,
    earlier: tuple[str, ...] = (),
    steps: int = STEPS,
    instead: str = "",
) -> object:
    """Request a partial deletion that leaves two files of 20 bytes; return the reply."""
    message = PartialDeletionRequested(uuid_of(TRIAL, steps), patterns, earlier, 2, 20, instead)
    replies: list[object] = []

    def keep(reply: object) -> tuple[()]:
        replies.append(reply)
        return ()

    cluster.engine.execute_command(addresses.trial(TRIAL), message, extra_writes=keep)
    return replies[-1]


def record(cluster: CollectionCluster) -> CheckpointRecord:
    part = cluster.engine.read_part(addresses.trial(TRIAL), CHECKPOINT_PARTS + UUID)
    assert isinstance(part, CheckpointRecord)
    return part


def files_left(cluster: CollectionCluster) -> list[str]:
    folder = cluster.root / FOLDER
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_files_that_match_the_patterns_are_deleted(cluster: CollectionCluster) -> None:
    assert request(cluster, "optimizer/**", "c*/c") is True
    assert record(cluster).state == "PARTIALLY_DELETED"
    cluster.work_off()
    assert files_left(cluster) == ["manifest.json", "weights"]
    checkpoint = record(cluster)
    assert (checkpoint.files, checkpoint.size_bytes) == (2, 20)
    assert checkpoint.deleted_patterns == ("optimizer/**", "c*/c")
    assert cluster.rows(COLLECTIONS) == []


def test_manifest_is_kept_for_all_patterns(cluster: CollectionCluster) -> None:
    request(cluster, "**", "*", "manifest.json")
    cluster.work_off()
    assert files_left(cluster) == ["manifest.json"]


def test_new_collector_finishes_an_interrupted_partial_deletion(tmp_path: Path) -> None:
    for passes in range(8):
        folder = tmp_path / str(passes)
        folder.mkdir()
        cluster = CollectionCluster.after_search(folder)
        for name in ("weights", "optimizer/a", "optimizer/b"):
            cluster.write(f"{FOLDER}/{name}")
        request(cluster, "optimizer/**")
        for _ in range(passes):
            cluster.collector.collect(budget_seconds=0)
        cluster = CollectionCluster(cluster.folder, cluster.table, cluster.now_ms, cluster.trials)
        cluster.work_off()
        assert files_left(cluster) == ["manifest.json", "weights"]
        assert record(cluster).state == "PARTIALLY_DELETED"


def test_second_partial_deletion_adds_patterns(
    cluster: CollectionCluster,
) -> None:
    request(cluster, "optimizer/a")
    # The collector has begun the first request when the second request arrives.
    cluster.collector.collect(budget_seconds=0)
    assert request(cluster, "optimizer/b", earlier=("optimizer/a",)) is True
    cluster.work_off()
    assert files_left(cluster) == ["code/c", "manifest.json", "weights"]
    assert request(cluster, "code", earlier=("optimizer/a", "optimizer/b")) is True
    cluster.work_off()
    assert files_left(cluster) == ["manifest.json", "weights"]
    assert record(cluster).deleted_patterns == ("optimizer/a", "optimizer/b", "code")


def test_partial_deletion_with_outdated_patterns_is_refused(cluster: CollectionCluster) -> None:
    request(cluster, "optimizer/a")
    assert request(cluster, "optimizer/b") is False
    assert record(cluster).deleted_patterns == ("optimizer/a",)


def test_partly_deleted_checkpoint_can_be_deleted_as_a_whole(cluster: CollectionCluster) -> None:
    request(cluster, "optimizer/a")
    cluster.collector.collect(budget_seconds=0)
    cluster.request_checkpoint_deletion(TRIAL, STEPS)
    cluster.work_off()
    assert record(cluster).state == "DELETED"
    assert not (cluster.root / FOLDER).exists()
    assert request(cluster, "weights", earlier=("optimizer/a",)) is False


def test_pinned_checkpoint_stays_whole(cluster: CollectionCluster) -> None:
    cluster.pin(UUID, 7)
    assert request(cluster, "optimizer/a") is False
    assert record(cluster).state == "COMPLETED"
    assert pending_requests(cluster.table) == {}


def test_latest_checkpoint_of_an_active_trial_stays_whole(tmp_path: Path) -> None:
    cluster = CollectionCluster(tmp_path)
    cluster.start_experiment()
    cluster.add(TRIAL, STEPS)
    cluster.set_latest(TRIAL, STEPS)
    assert request(cluster, "weights") is False
    cluster.add(TRIAL, 20)
    cluster.set_latest(TRIAL, 20)
    assert request(cluster, "weights") is True


def test_ended_trial_gets_the_replacement_as_latest_checkpoint(cluster: CollectionCluster) -> None:
    cluster.set_latest(TRIAL, STEPS)
    assert request(cluster, "optimizer/a", instead=uuid_of(TRIAL, 20)) is True
    trial = cluster.engine.read_state(addresses.trial(TRIAL))
    assert trial is not None
    assert getattr(trial, "checkpoint").uuid == uuid_of(TRIAL, 20)  # noqa: B009


def test_partial_deletion_marks_the_pin_row_as_gone(cluster: CollectionCluster) -> None:
    request(cluster, "optimizer/a")
    row = cluster.table.get(Key(PINS, UUID))
    assert row is not None
    assert decode_pin(row.body).is_deleted


def test_retention_keeps_partly_deleted_checkpoints(
    cluster: CollectionCluster,
) -> None:
    request(cluster, "optimizer/**")
    cluster.work_off()
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert files_left(cluster) == ["code/c", "manifest.json", "weights"]
    cluster.request_deletion()
    cluster.work_off()
    assert not (cluster.root / FOLDER).exists()


def test_partial_deletion_waits_for_a_missing_store(cluster: CollectionCluster) -> None:
    request(cluster, "optimizer/**")
    away = cluster.root.rename(cluster.root.with_name("unmounted"))
    for _ in range(3):
        cluster.collector.collect()
        cluster.now_ms += 600_000
    assert 1 in pending_requests(cluster.table)
    away.rename(cluster.root)
    cluster.work_off()
    assert files_left(cluster) == ["code/c", "manifest.json", "weights"]
