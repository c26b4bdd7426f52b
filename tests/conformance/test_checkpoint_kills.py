"""Kills at drawn moments of storing and deleting checkpoints, on each store."""

import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import urllib3

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.gcp.firestore_client import authorize_owner
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import StateTable
from detcloud.shared.azure import AzureContainer
from detcloud.shared.azure_place import AzurePlace
from detcloud.shared.webhdfs import HdfsFolder
from detcloud.shared.webhdfs_client import HdfsError
from tests.conformance.checkpoint_files import hdfs_storage
from tests.conformance.checkpoint_kills import CheckpointKills, KillCounts
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import PROJECT, Firestore, IndexedClient
from tests.emulators.hadoop import Hadoop
from tests.emulators.ministack import Ministack
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs
from tests.patience import ANSWER_SECONDS_MAX

KILLS_IN_SHORT = 30
KILLS = int(os.environ.get("CHECKPOINT_KILLS", "1000"))
SEED = int(os.environ.get("CHECKPOINT_KILLS_SEED", "1"))
# Of many checkpoints, each collector deletes some.
OF_COLLECTORS = {"commits_max": 8, "collect_seconds": 0.01}


def kills_in(
    folder: Path, storage: dict[str, str], environment: dict[str, str] | None = None, **more: Any
) -> CheckpointKills:
    return CheckpointKills(folder, storage, Random(SEED), environment or {}, **more)


def kills_in_folder(folder: Path, storage_type: str, **more: Any) -> CheckpointKills:
    store = folder / "store"

    def unfinished_writes() -> list[str]:
        return [str(path) for path in store.rglob("*") if not path.is_dir()]

    storage = {"type": storage_type, "path": str(store)}
    return kills_in(folder, storage, find_hidden=unfinished_writes, **more)


def kills_in_bucket(folder: Path, s3: SeaweedFs, **more: Any) -> CheckpointKills:
    place = s3.place()
    storage = {
        "type": "s3",
        "bucket": place.name,
        "endpoint_url": str(place.endpoint_url),
        "access_key": str(place.access_key),
        "secret_key": str(place.secret_key),
    }

    def unfinished_uploads() -> list[str]:
        uploads = s3.client.list_multipart_uploads(Bucket=place.name).get("Uploads", [])
        return [upload["Key"] for upload in uploads]

    return kills_in(folder, storage, find_hidden=unfinished_uploads, **more)


def kills_in_hdfs(folder: Path, storage: dict[str, str]) -> CheckpointKills:
    client = HdfsFolder.from_storage(storage).paths.client

    def all_files(path: str = storage["hdfs_path"]) -> list[str]:
        try:
            answer = client.ask("GET", path, "LISTSTATUS")
        except HdfsError as error:
            if error.kind != "FileNotFoundException":
                raise
            return []
        found: list[str] = []
        for entry in answer["FileStatuses"]["FileStatus"]:
            place = f"{path}/{entry['pathSuffix']}"
            found += all_files(place) if entry["type"] == "DIRECTORY" else [place]
        return found

    return kills_in(folder, storage, find_hidden=all_files)


def run_kills(proof: CheckpointKills, kills: int = KILLS) -> KillCounts:
    """Kill so often; the counts, which are printed too."""
    try:
        return proof.run(kills)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)


def run_collections(proof: CheckpointKills) -> KillCounts:
    """Kill so many collectors; the counts, which are printed too."""
    try:
        return proof.run_collections(KILLS)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)


def test_kills_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    counts = run_kills(kills_in_folder(tmp_path, "directory"), KILLS_IN_SHORT)
    assert min(counts.of_trials, counts.of_collectors, counts.checkpoints) > 0


def open_dynamodb(account: Ministack, name: str) -> StateTable:
    return DynamoDbTable(account.client("dynamodb"), name)


@pytest.mark.nightly
def test_kills_lose_no_record_in_dynamodb(tmp_path: Path, aws: Ministack) -> None:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    open_table: Callable[[], StateTable] = partial(open_dynamodb, aws, name)
    counts = run_kills(kills_in_folder(tmp_path, "directory", open_table=open_table))
    assert min(counts.incomplete, counts.of_servers, counts.checkpoints) > 0


# A process takes some seconds to come up there: fewer kills take as long as those of others.
def open_firestore(url: str, database: str) -> StateTable:
    # Whoever is killed leaves its connections behind, so that each process has its own.
    pool = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX)
    return FirestoreTable(IndexedClient(pool, PROJECT, database, authorize_owner, url))


@pytest.mark.nightly
def test_kills_lose_no_record_in_firestore(tmp_path: Path, firestore: Firestore) -> None:
    place = (firestore.url, firestore.new_database())
    open_table: Callable[[], StateTable] = partial(open_firestore, *place)
    counts = run_kills(kills_in_folder(tmp_path, "directory", open_table=open_table), KILLS // 5)
    assert min(counts.incomplete, counts.of_servers, counts.checkpoints) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("storage_type", ["directory", "shared_fs"])
def test_many_kills_lose_no_checkpoint_in_a_folder(tmp_path: Path, storage_type: str) -> None:
    assert run_kills(kills_in_folder(tmp_path, storage_type)).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_s3(tmp_path: Path, s3: SeaweedFs) -> None:
    assert run_kills(kills_in_bucket(tmp_path, s3)).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_gcs(tmp_path: Path, gcs: FakeGcs) -> None:
    storage = {"type": "gcs", "bucket": gcs.new_bucket()}
    assert run_kills(kills_in(tmp_path, storage, {"STORAGE_EMULATOR_HOST": gcs.url})).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_azure(tmp_path: Path, azure: Azurite) -> None:
    storage = azure.storage()
    container = AzureContainer(AzurePlace.from_storage(storage))
    unfinished = partial(container.unfinished_keys, "")
    assert run_kills(kills_in(tmp_path, storage, find_hidden=unfinished)).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_hdfs(tmp_path: Path, model_hdfs: WebHdfs) -> None:
    assert run_kills(kills_in_hdfs(tmp_path, hdfs_storage(model_hdfs.url, OWNER))).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_hadoop(tmp_path: Path, real_hdfs: Hadoop) -> None:
    storage = hdfs_storage(real_hdfs.url, real_hdfs.user)
    assert run_kills(kills_in_hdfs(tmp_path, storage)).incomplete


@pytest.mark.nightly
def test_kills_of_collectors_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    proof = kills_in_folder(tmp_path, "directory", **OF_COLLECTORS)
    assert run_collections(proof).checkpoints


@pytest.mark.nightly
def test_kills_of_collectors_lose_no_checkpoint_in_s3(tmp_path: Path, s3: SeaweedFs) -> None:
    assert run_collections(kills_in_bucket(tmp_path, s3, **OF_COLLECTORS)).checkpoints
