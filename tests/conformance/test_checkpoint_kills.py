"""Kills at drawn moments of storing and deleting checkpoints, on each store."""

import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest
import urllib3

from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.gcp.firestore_client import authorize_owner
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import StateTable
from tests.conformance.checkpoint_files import hdfs_storage
from tests.conformance.checkpoint_kills import CheckpointKills
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import PROJECT, Firestore, IndexedClient
from tests.emulators.ministack import Ministack
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs
from tests.patience import ANSWER_SECONDS_MAX

KILLS_IN_SHORT = 30
KILLS = int(os.environ.get("CHECKPOINT_KILLS", "1000"))
SEED = int(os.environ.get("CHECKPOINT_KILLS_SEED", "1"))


def kill_on_directory(
    folder: Path, kills: int, open_table: Callable[[], StateTable] | None = None
) -> CheckpointKills:
    store = folder / "store"
    proof = CheckpointKills(
        folder,
        {"type": "directory", "path": str(store)},
        Random(SEED),
        find_hidden=lambda: [str(path) for path in store.rglob("*") if not path.is_dir()],
        open_table=open_table,
    )
    proof.run(kills)
    return proof


def test_kills_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    counts = kill_on_directory(tmp_path, KILLS_IN_SHORT).counts
    assert min(counts.of_trials, counts.of_collectors, counts.checkpoints) > 0


def open_dynamodb(account: Ministack, name: str) -> StateTable:
    return DynamoDbTable(account.client("dynamodb"), name)


@pytest.mark.nightly
def test_kills_lose_no_record_in_dynamodb(tmp_path: Path, aws: Ministack) -> None:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    counts = kill_on_directory(tmp_path, KILLS, partial(open_dynamodb, aws, name)).counts
    assert min(counts.incomplete, counts.of_servers, counts.checkpoints) > 0


# A process takes some seconds to come up there: fewer kills take as long as those of others.
def open_firestore(url: str, database: str) -> StateTable:
    # Whoever is killed leaves its connections behind, so that each process has its own.
    pool = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX)
    return FirestoreTable(IndexedClient(pool, PROJECT, database, authorize_owner, url))


@pytest.mark.nightly
def test_kills_lose_no_record_in_firestore(tmp_path: Path, firestore: Firestore) -> None:
    place = (firestore.url, firestore.new_database())
    counts = kill_on_directory(tmp_path, KILLS // 5, partial(open_firestore, *place)).counts
    assert min(counts.incomplete, counts.of_servers, counts.checkpoints) > 0


@pytest.mark.nightly
def test_many_kills_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    assert kill_on_directory(tmp_path, KILLS).counts.incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_s3(tmp_path: Path, s3: SeaweedFs) -> None:
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

    proof = CheckpointKills(tmp_path, storage, Random(SEED), find_hidden=unfinished_uploads)
    assert proof.run(KILLS).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_gcs(tmp_path: Path, gcs: FakeGcs) -> None:
    storage = {"type": "gcs", "bucket": gcs.new_bucket()}
    environment = {"STORAGE_EMULATOR_HOST": gcs.url}
    assert CheckpointKills(tmp_path, storage, Random(SEED), environment).run(KILLS).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_azure(tmp_path: Path, azure: Azurite) -> None:
    assert CheckpointKills(tmp_path, azure.storage(), Random(SEED)).run(KILLS).incomplete


@pytest.mark.nightly
def test_kills_lose_no_checkpoint_in_hdfs(tmp_path: Path, model_hdfs: WebHdfs) -> None:
    storage = hdfs_storage(model_hdfs.url, OWNER)
    assert CheckpointKills(tmp_path, storage, Random(SEED)).run(KILLS).incomplete
