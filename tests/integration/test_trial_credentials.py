"""The keys of a trial's own code and the keys of its checkpoints are never confused.

Both have a bucket that only their own keys open, so that a request with the wrong keys is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.assignment.environment import without_user_variables
from detcloud.agent.issued_keys import StorageKeys
from detcloud.agent.storage_credentials import CredentialServer
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_limits import S3_LIMITS
from detcloud.storage import StorageError, build_store
from detcloud.storage.bucket_store import BucketStore
from tests.conftest import require
from tests.emulators.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs

WRONG = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def checkpoints(s3: SeaweedFs) -> BucketPlace:
    return s3.guest_place("checkpoints")


@pytest.fixture
def data(s3: SeaweedFs) -> BucketPlace:
    return s3.guest_place("data")


def users_variables(data: BucketPlace, folder: Path) -> dict[str, str]:
    """Return all variables that a trial's code may set to reach its own data."""
    files = {"config": "[profile own]\nregion = eu-west-3\n", "credentials": "[own]\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    return {
        "AWS_ACCESS_KEY_ID": str(data.access_key),
        "AWS_SECRET_ACCESS_KEY": str(data.secret_key),
        "AWS_DEFAULT_REGION": "eu-west-3",
        "AWS_PROFILE": "own",
        "AWS_CONFIG_FILE": str(folder / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_ENDPOINT_URL": str(data.endpoint_url),
    }


def storage(place: BucketPlace) -> dict[str, Any]:
    names = ("endpoint_url", "access_key", "secret_key")
    fields = {"type": "s3", "bucket": place.name, **{text: getattr(place, text) for text in names}}
    return {name: value for name, value in fields.items() if value is not None}


def check_store(fields: dict[str, Any], folder: Path) -> None:
    """Store a checkpoint's file and read it."""
    (folder / "weights").write_bytes(b"weights")
    store = build_store(fields)
    store.put("1/1/1/u/weights", folder / "weights")
    store.get("1/1/1/u/weights", folder / "copy")
    assert (folder / "copy").read_bytes() == b"weights"


def check_users_code(data: BucketPlace) -> None:
    """Read and write the data with ordinary user code."""
    client: Any = require("boto3").Session().client("s3")
    assert client.meta.region_name == "eu-west-3"
    client.put_object(Bucket=data.name, Key="sample", Body=b"sample")
    assert client.get_object(Bucket=data.name, Key="sample")["Body"].read() == b"sample"


def test_configured_keys_open_checkpoints_and_variables_open_the_codes_data(
    checkpoints: BucketPlace, data: BucketPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in users_variables(data, tmp_path).items():
        monkeypatch.setenv(name, value)
    check_store(storage(checkpoints), tmp_path)
    check_users_code(data)


def test_endpoint_of_the_code_is_not_used_for_checkpoints(
    checkpoints: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcloud.shared.s3_client import new_client

    place = replace(checkpoints, endpoint_url=None, region=None)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, WRONG)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert new_client(place, for_checkpoints=True).meta.endpoint_url == "https://s3.amazonaws.com"
    monkeypatch.setenv("DETCLOUD_STORAGE_REGION", "us-west-2")
    client = new_client(place, for_checkpoints=True)
    assert client.meta.endpoint_url == "https://s3.us-west-2.amazonaws.com"
    assert new_client(place).meta.endpoint_url == WRONG


def test_variables_of_the_code_are_not_keys_of_checkpoints(
    checkpoints: BucketPlace, data: BucketPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in users_variables(data, tmp_path).items():
        monkeypatch.setenv(name, value)
    keyless = replace(checkpoints, access_key=None, secret_key=None)
    with pytest.raises(StorageError, match="set access_key and secret_key in checkpoint_storage"):
        build_store(storage(keyless))


@pytest.fixture
def server(tmp_path: Path, checkpoints: BucketPlace) -> Iterator[CredentialServer]:
    """Yield an agent's credential server; the cluster issues the keys of the checkpoints."""

    def fetch(allocation: str) -> StorageKeys:
        keys = str(checkpoints.access_key), str(checkpoints.secret_key)
        return StorageKeys(*keys, "", int(time.time() * 1000) + 3_600_000)

    folder = tmp_path / "agent"
    folder.mkdir()
    running = CredentialServer(folder, fetch, print)
    yield running
    running.close()


def test_keys_of_the_credential_server_open_checkpoints_alone(
    server: CredentialServer,
    checkpoints: BucketPlace,
    data: BucketPlace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = users_variables(data, tmp_path)
    offered = without_user_variables(server.variables("4.1"), own, device="cpu")
    for name, value in {**offered, **own}.items():
        monkeypatch.setenv(name, value)
    given = replace(checkpoints, access_key=None, secret_key=None)
    check_store({**storage(given), "credentials": "given"}, tmp_path)
    check_users_code(data)
    # Without its own keys the code does not get the keys of the checkpoints.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    exceptions = require("botocore.exceptions")
    with pytest.raises(exceptions.NoCredentialsError):
        require("boto3").Session().client("s3").list_buckets()


def test_upload_continues_with_new_keys_after_the_old_keys_expire(
    checkpoints: BucketPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        (str(checkpoints.access_key), str(checkpoints.secret_key)),
        (ACCESS_KEY, SECRET_KEY),
    )
    sent: list[str] = []

    def note_key(request: Any, **_: Any) -> None:
        header = request.headers["Authorization"]
        sent.append(header if isinstance(header, str) else header.decode())

    def fetch(allocation: str) -> StorageKeys:
        # Clients ask again with each request for keys that expire so soon.
        soon = int(time.time() * 1000) + 300_000
        return StorageKeys(*(second if len(sent) >= 2 else first), "", soon)

    (tmp_path / "agent").mkdir()
    server = CredentialServer(tmp_path / "agent", fetch, print)
    try:
        for name, value in server.variables("4.1").items():
            monkeypatch.setenv(name, value)
        given = replace(checkpoints, access_key=None, secret_key=None)
        client = new_client(given, for_checkpoints=True)
        client.meta.events.register("before-send.s3", note_key)
        store = BucketStore(Bucket(given, client))
        # The begin, three parts, the end.
        content = os.urandom(2 * S3_LIMITS.sent_part_bytes + 1)
        (tmp_path / "weights").write_bytes(content)
        store.put("1/1/1/u/weights", tmp_path / "weights")
        store.get("1/1/1/u/weights", tmp_path / "copy")
    finally:
        server.close()
    assert (tmp_path / "copy").read_bytes() == content
    assert [any(key in one for one in sent[:5]) for key, _ in (first, second)] == [True, True]


@pytest.mark.parametrize(
    ("own", "hidden"),
    [
        ({}, set()),
        ({"TOKEN": "x"}, set()),
        ({"AWS_REGION": "x"}, {"AWS_DEFAULT_REGION", "AWS_REGION"}),
        ({"AWS_PROFILE": "x"}, {"AWS_CONTAINER_CREDENTIALS_FULL_URI"}),
        ({"AWS_ACCESS_KEY_ID": "x"}, {"AWS_CONTAINER_CREDENTIALS_FULL_URI"}),
    ],
)
def test_user_variables_override_the_agents_variables(
    own: dict[str, str], hidden: set[str]
) -> None:
    names = (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "DETCLOUD_STORAGE_CREDENTIALS_URI",
    )
    left = without_user_variables(dict.fromkeys(names, "ours"), own, device="cpu")
    assert set(names) - set(left) == hidden
