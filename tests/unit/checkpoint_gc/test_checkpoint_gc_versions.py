"""The collector in a bucket that keeps versions of deleted files."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from control_plane.actors.messages.experiment import DeleteRequested
from control_plane.actors.pins import PINS
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import Stores
from control_plane.checkpoint_stores.bucket_files import BucketFiles
from control_plane.checkpoint_stores.checkpoint_files import PURGE_VERSIONS, CheckpointFiles
from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.state.table import Expect, Key, Put
from detcloud.shared.bucket_errors import AccessDenied, NoSuchKey
from tests.engine_timing import UNHURRIED
from tests.unit.checkpoint_gc.collection_cluster import (
    EXPERIMENT,
    CollectionCluster,
    uuid_of,
)


class VersionedBucket:
    """A bucket in memory: the versions of each key, oldest first. None is a delete marker."""

    place = "s3://versions"

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, bytes | None]] = {}
        self.denies_versions = False
        self._count = 0

    def put(self, key: str, content: bytes | None) -> None:
        self._count += 1
        self.stored.setdefault(key, {})[str(self._count)] = content

    def abort_uploads(self, prefix: str) -> None:
        pass

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        for key, versions in sorted(self.stored.items()):
            current = list(versions.values())[-1]
            if key.startswith(prefix) and current is not None:
                yield key, len(current)

    def delete(self, key: str) -> None:
        if key in self.stored:
            self.put(key, None)

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        current = list(self.stored.get(key, {"": None}).values())[-1]
        if current is None:
            raise NoSuchKey
        return len(current), iter([current])

    def send(self, key: str, source: Path) -> bool:
        return False

    def signed_get_url(self, key: str, seconds: int) -> str:
        return ""

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        if self.denies_versions:
            raise AccessDenied("no s3:ListBucketVersions")
        found = [
            (key, version)
            for key, versions in self.stored.items()
            for version in versions
            if key.startswith(prefix)
        ]
        yield from found

    def delete_version(self, key: str, version: str) -> None:
        del self.stored[key][version]
        if not self.stored[key]:
            del self.stored[key]


@dataclass(frozen=True)
class VersionedStores(Stores):
    """Stores whose files are in `bucket`; removals with `purge` delete versions."""

    bucket: VersionedBucket | None = None

    def checkpoint_files(self, experiment_id: int, *, purge: bool = False) -> CheckpointFiles:
        assert self.bucket is not None
        return BucketFiles(self.bucket, versions=self.bucket if purge else None)


class VersionedCluster(CollectionCluster):
    """A cluster after a search whose checkpoints are in a bucket with versions."""

    def use_bucket(self) -> VersionedBucket:
        bucket = VersionedBucket()
        for file in sorted(self.root.rglob("*")):
            if file.is_file():
                bucket.put(str(file.relative_to(self.root)), file.read_bytes())
        self.stores = VersionedStores(
            **{**vars(self.stores), "bucket": bucket, "purges_versions": True}
        )
        self.collector = Collector(self.stores, UNHURRIED.monotonic_seconds)
        return bucket

    def pin_late(self, uuid: str) -> None:
        """Overwrite the pin row of a marked checkpoint, as a restored backup would."""
        key = Key(PINS, uuid)
        row = self.table.get(key)
        revision = row.revision if row else 0
        body = json.dumps({"by": [], "gone": True, "versions": ["resnet/1"]}).encode()
        self.table.commit((Put(key, revision + 1, body, Expect.ANYTHING),))


@pytest.fixture
def cluster(tmp_path: Path) -> VersionedCluster:
    cluster = VersionedCluster(tmp_path)
    cluster.run_search()
    return cluster


def test_collected_checkpoints_leave_no_versions(cluster: VersionedCluster) -> None:
    bucket = cluster.use_bucket()
    cluster.request_retention(0, 0, 0)
    cluster.work_off()
    assert bucket.stored == {}


def test_marked_checkpoint_with_a_pin_keeps_its_versions(
    cluster: VersionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = cluster.use_bucket()
    cluster.request_retention(0, 0, 0)
    pinned = uuid_of(2, 10)
    while pinned not in cluster.rows(PINS):
        cluster.collector.collect(budget_seconds=0)
    cluster.pin_late(pinned)
    with caplog.at_level(logging.WARNING):
        cluster.work_off()
    key = f"1/2/1/{pinned}/manifest.json"
    assert list(bucket.stored) == [key]
    # The file and a delete marker, which a person deletes to restore the file.
    assert list(bucket.stored[key].values()) == [b"{}", None]
    assert f"{pinned} is marked for deletion, although model version resnet/1 holds it" in (
        caplog.text
    )


def test_refused_versions_do_not_block_the_collector(
    cluster: VersionedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = cluster.use_bucket()
    bucket.denies_versions = True
    cluster.request_retention(0, 0, 0)
    with caplog.at_level(logging.WARNING):
        cluster.work_off()
    assert not list(bucket.list_objects(""))
    assert len(bucket.stored) == 6
    assert "older versions of deleted files stay" in caplog.text


def test_unrecorded_checkpoints_of_a_deleted_experiment_keep_their_versions(
    cluster: VersionedCluster,
) -> None:
    unknown = "1/1/1/00000000-0000-4000-8000-000000000000/manifest.json"
    cluster.write(unknown).write_text(json.dumps({"cluster_id": "9c1f"}))
    bucket = cluster.use_bucket()
    cluster.engine.execute_command(EXPERIMENT, DeleteRequested())
    cluster.work_off()
    assert not list(bucket.list_objects(""))
    assert set(bucket.stored) <= {unknown}


def test_single_files_are_purged_without_their_neighbours() -> None:
    bucket = VersionedBucket()
    for key in ("1/2/3/u/a", "1/2/3/u/a", "1/2/3/u/ab"):
        bucket.put(key, b"x")
    files = BucketFiles(bucket, versions=bucket)
    assert files.remove_file(("1", "2", "3", "u"), "a") == 2
    assert list(bucket.stored) == ["1/2/3/u/ab"]
    # A missing file counts as in other stores.
    assert files.remove_file(("1", "2", "3", "u"), "a") == 1


@pytest.mark.parametrize(
    ("purges", "purge", "own", "expected"),
    [
        (True, True, True, True),
        (False, True, True, False),
        (True, False, True, False),
        # A store that the experiment names is not the stack's bucket.
        (True, True, False, False),
    ],
)
def test_only_the_clusters_own_bucket_is_purged(
    purges: bool, purge: bool, own: bool, expected: bool, tmp_path: Path
) -> None:
    cluster = VersionedCluster(tmp_path)
    cluster.start_experiment(1)
    storage = S3(type="s3", bucket="own", access_key=None, secret_key=None)
    stores = replace(cluster.stores, checkpoints=storage, purges_versions=purges)
    opened: list[object] = []
    from control_plane.checkpoint_gc import stores as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_checkpoint_files", opened.append)
        if not own:
            named = S3(type="s3", bucket="theirs")

            class Config:
                checkpoint_storage = named

            patch.setattr(module, "parse_stored_config", lambda definition: Config())
        stores.checkpoint_files(1, purge=purge)
    [fields] = opened
    assert isinstance(fields, dict)
    assert (PURGE_VERSIONS in fields) is expected
