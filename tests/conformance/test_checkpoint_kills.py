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
from tests.conformance.checkpoint_kills import CheckpointKills
from tests.conformance.kill_phases import COLLECTOR_PHASES, PHASES, KillCounts
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
# Each of the eight phases is drawn in 10 % of the kills or more, and a kill may come a phase late.
SHARE_MIN = 0.05
# Of the kills of collectors, for either of the two phases.
SHARE_OF_COLLECTORS_MIN = 0.2
OpenKills = Callable[[Path, pytest.FixtureRequest], CheckpointKills]


def kills_in(
    folder: Path, storage: dict[str, str], environment: dict[str, str] | None = None, **more: Any
) -> CheckpointKills:
    more = {"environment": environment or {}, "random": Random(SEED), **more}
    return CheckpointKills(folder, storage, **more)


def kills_in_folder(folder: Path, storage_type: str, **more: Any) -> CheckpointKills:
    store = folder / "store"

    def unfinished_writes() -> list[str]:
        return [str(path) for path in store.rglob("*") if not path.is_dir()]

    storage = {"type": storage_type, "path": str(store)}
    return kills_in(folder, storage, find_hidden=unfinished_writes, **more)


def kills_in_directory(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    return kills_in_folder(folder, "directory")


def kills_in_shared_fs(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    return kills_in_folder(folder, "shared_fs")


def kills_in_s3(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    s3: SeaweedFs = request.getfixturevalue("s3")
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

    return kills_in(folder, storage, find_hidden=unfinished_uploads)


def kills_in_gcs(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    gcs: FakeGcs = request.getfixturevalue("gcs")
    storage = {"type": "gcs", "bucket": gcs.new_bucket()}
    return kills_in(folder, storage, {"STORAGE_EMULATOR_HOST": gcs.url})


def kills_in_azure(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    azure: Azurite = request.getfixturevalue("azure")
    storage = azure.storage()
    container = AzureContainer(AzurePlace.from_storage(storage))
    return kills_in(folder, storage, find_hidden=partial(container.unfinished_keys, ""))


def kills_in_model_hdfs(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    hdfs: WebHdfs = request.getfixturevalue("model_hdfs")
    return kills_in_hdfs(folder, hdfs_storage(hdfs.url, OWNER))


def kills_in_hadoop(folder: Path, request: pytest.FixtureRequest) -> CheckpointKills:
    hadoop: Hadoop = request.getfixturevalue("real_hdfs")
    return kills_in_hdfs(folder, hdfs_storage(hadoop.url, hadoop.user))


STORES: dict[str, OpenKills] = {
    "directory": kills_in_directory,
    "shared_fs": kills_in_shared_fs,
    "s3": kills_in_s3,
    "gcs": kills_in_gcs,
    "azure": kills_in_azure,
    "hdfs": kills_in_model_hdfs,
    "hadoop": kills_in_hadoop,
}


def kills_in_hdfs(folder: Path, storage: dict[str, str]) -> CheckpointKills:
    client = HdfsFolder.from_storage(storage)._client

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


def run_kills(
    proof: CheckpointKills, kills: int = KILLS, share_min: float = SHARE_MIN
) -> KillCounts:
    """Kill so often, in all phases; the counts, which are printed too."""
    try:
        proof.run(kills)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)
    proof.counts.check_spread(PHASES, share_min)
    return proof.counts


def test_kills_lose_no_checkpoint_in_a_directory(tmp_path: Path) -> None:
    proof = kills_in_folder(tmp_path, "directory")
    # One kill of each phase, then, and four are drawn.
    assert run_kills(proof, KILLS_IN_SHORT, 1 / KILLS_IN_SHORT / 2).checkpoints


def open_dynamodb(account: Ministack, name: str) -> StateTable:
    return DynamoDbTable(account.client("dynamodb"), name)


@pytest.mark.nightly
def test_kills_lose_no_record_in_dynamodb(tmp_path: Path, aws: Ministack) -> None:
    name = f"table-{uuid.uuid4().hex}"
    aws.client("dynamodb").create_table(**table_definition(name))
    open_table: Callable[[], StateTable] = partial(open_dynamodb, aws, name)
    counts = run_kills(kills_in_folder(tmp_path, "directory", open_table=open_table))
    assert min(counts.incomplete, counts.checkpoints) > 0


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
    assert min(counts.incomplete, counts.checkpoints) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_many_kills_lose_no_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    assert run_kills(STORES[store](tmp_path, request)).incomplete


@pytest.mark.nightly
@pytest.mark.parametrize("store", STORES)
def test_many_kills_of_collectors_lose_no_checkpoint(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    proof = STORES[store](tmp_path, request)
    try:
        proof.run_collections(KILLS)
    finally:
        print(f"\nseed {SEED}: {proof.counts}", flush=True)
    assert proof.counts.checkpoints
    proof.counts.check_spread(COLLECTOR_PHASES, SHARE_OF_COLLECTORS_MIN)
