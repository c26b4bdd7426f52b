"""Checkpoints that several ranks store together in every store, each with separate files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.manifests import parse_manifest
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.queries.checkpoint_files import find_missing_file
from detcloud import DetcloudError
from detcloud.core import CheckpointContext, TrialSpec
from detcloud.core.distributed_context import DistributedContext
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.storage import CheckpointStore, StorageError
from tests.conformance.checkpoint_files import hdfs_storage
from tests.conformance.every_store import STORES, new_storage
from tests.conformance.small_stores import build_small_store
from tests.emulators.hadoop import Hadoop
from tests.unit.core.conftest import SIZE, run_ranks

__all__ = ["run_ranks"]

MIB = 1 << 20
# Of a rank, sent in several parts of 5 MiB in S3 and at most 2 MiB elsewhere.
CONTENTS = [bytes([65 + rank]) * (6 * MIB) + b"the end" for rank in range(SIZE)]


@pytest.fixture(params=[*STORES, pytest.param("hadoop", marks=pytest.mark.nightly)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "hadoop":
        real: Hadoop = request.getfixturevalue("real_hdfs")
        return hdfs_storage(real.url, real.user)
    return new_storage(request.param, request, tmp_path)


@pytest.fixture(autouse=True)
def _small_parts(set_upload_part_bytes: Callable[[int], None]) -> None:
    set_upload_part_bytes(MIB)


class FullStore:
    """A store that is full for the file of rank 2."""

    def __init__(self, store: CheckpointStore) -> None:
        self.root, self.get, self.list, self.delete = None, store.get, store.list, store.delete
        self._put = store.put

    def put(self, key: str, source: Path) -> None:
        if key.endswith("/weights2"):
            raise StorageError("the store is full")
        self._put(key, source)


class Gang:
    """The checkpoint contexts of the ranks of a trial, and the chief's reports."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.reports: list[dict[str, Any]] = []

    def store_shard(self, checkpoint: CheckpointContext, ranks: DistributedContext) -> str:
        """Store the shard of a rank; return the checkpoint's UUID, or the error."""
        try:
            with checkpoint.store_path({"steps_completed": 7}, shard=True) as (folder, uuid):
                (folder / f"weights{ranks.rank}").write_bytes(CONTENTS[ranks.rank])
                (folder / "of all").write_bytes(b"the same")
            return uuid
        except DetcloudError as error:
            return str(error)

    def checkpoint(self, ranks: DistributedContext) -> CheckpointContext:
        def report(kind: str, **fields: object) -> None:
            if ranks.rank == 0:
                self.reports.append({"kind": kind, **fields})

        spec = TrialSpec(experiment_id=1, trial_id=2, epoch=3)
        return CheckpointContext(spec, self.store, report, on_cluster=True, distributed=ranks)


def test_shards_of_all_ranks_form_a_checkpoint(
    run_ranks: Any, storage: dict[str, str], tmp_path: Path
) -> None:
    gang = Gang(build_small_store(storage))

    def work(ranks: DistributedContext) -> Any:
        checkpoint = gang.checkpoint(ranks)
        uuid = gang.store_shard(checkpoint, ranks)
        with checkpoint.restore_path(uuid) as folder:
            read = [(folder / f"weights{rank}").read_bytes() for rank in range(SIZE)]
            return uuid, read == CONTENTS, (folder / "of all").read_bytes()

    [(uuid, *found)] = {*run_ranks(work)}
    assert found == [True, b"the same"]
    [intent, stored] = gang.reports
    assert (intent["kind"], stored["kind"], stored["uuid"]) == (
        "checkpoint_intent",
        "checkpoint",
        uuid,
    )
    # The server's view of the files.
    gang.store.get(f"{stored['path']}/{MANIFEST}", tmp_path / "manifest")
    manifest = parse_manifest((tmp_path / "manifest").read_bytes(), stored["manifest_sha256"])
    files = open_checkpoint_files(storage)
    there = dict(files.list_files(tuple(stored["path"].split("/"))))
    assert find_missing_file(manifest, there) == ""
    names = {"metadata.json", "of all", *(f"weights{rank}" for rank in range(SIZE))}
    assert {file.path for file in manifest} == names
    assert there.keys() == {MANIFEST, *names}


def test_failing_rank_removes_the_files_of_all_ranks(
    run_ranks: Any, storage: dict[str, str]
) -> None:
    gang = Gang(FullStore(build_small_store(storage)))
    [text] = {*run_ranks(lambda ranks: gang.store_shard(gang.checkpoint(ranks), ranks))}
    assert "was not stored: rank 2: the store is full" in text
    assert gang.store.list("1") == {}
    assert [report["kind"] for report in gang.reports] == ["checkpoint_intent"]
