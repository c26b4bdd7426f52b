"""The stores under kills and faults, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from detcloud.shared.azure import AzureContainer
from detcloud.shared.azure_place import AzurePlace
from detcloud.shared.webhdfs import HdfsFolder
from detcloud.shared.webhdfs_client import HdfsError
from tests.conformance.checkpoint_files import hdfs_storage
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.hadoop import Hadoop
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs


@dataclass(frozen=True)
class StoreUnderTest:
    """A new, empty store and the means to reach it.

    `storage` is the store in a specification. `environment` has the variables that a process needs.
    `find_hidden` returns the files that listings omit. `url` is the server's, if any.
    """

    storage: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    find_hidden: Callable[[], list[str]] = list
    url: str = ""

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields of a cluster with checkpoints in this store."""
        names = ("storage", "environment", "find_hidden")
        return {name: getattr(self, name) for name in names}

    def behind(self, front: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the `storage` and the environment of a client that uses a front at the URL."""

        def replace(fields: Mapping[str, str]) -> dict[str, str]:
            return {name: value.replace(self.url, front) for name, value in fields.items()}

        return replace(self.storage), replace(self.environment)


def open_folder(folder: Path, storage_type: str) -> StoreUnderTest:
    """Return the store of the type in a folder."""

    def unfinished_writes() -> list[str]:
        return [str(path) for path in folder.rglob("*") if not path.is_dir()]

    storage = {"type": storage_type, "path": str(folder)}
    return StoreUnderTest(storage, find_hidden=unfinished_writes)


def open_store(name: str, folder: Path, request: pytest.FixtureRequest) -> StoreUnderTest:
    """Open the store of a name: an emulator from a fixture, or a store in `folder`."""
    opener = _BUCKETS.get(name)
    return opener(request) if opener else open_folder(folder, name)


def _open_s3(request: pytest.FixtureRequest) -> StoreUnderTest:
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

    return StoreUnderTest(storage, find_hidden=unfinished_uploads, url=s3.url)


def _open_gcs(request: pytest.FixtureRequest) -> StoreUnderTest:
    gcs: FakeGcs = request.getfixturevalue("gcs")
    storage = {"type": "gcs", "bucket": gcs.new_bucket()}
    return StoreUnderTest(storage, {"STORAGE_EMULATOR_HOST": gcs.url}, url=gcs.url)


def _open_azure(request: pytest.FixtureRequest) -> StoreUnderTest:
    azure: Azurite = request.getfixturevalue("azure")
    storage = azure.storage()
    container = AzureContainer(AzurePlace.from_storage(storage))
    unfinished = partial(container.unfinished_keys, "")
    return StoreUnderTest(storage, find_hidden=unfinished, url=azure.url.rpartition("/")[0])


def _open_model_hdfs(request: pytest.FixtureRequest) -> StoreUnderTest:
    hdfs: WebHdfs = request.getfixturevalue("model_hdfs")
    return _open_hdfs(hdfs_storage(hdfs.url, OWNER), hdfs.url)


def _open_hadoop(request: pytest.FixtureRequest) -> StoreUnderTest:
    hadoop: Hadoop = request.getfixturevalue("real_hdfs")
    return _open_hdfs(hdfs_storage(hadoop.url, hadoop.user), hadoop.url)


def _open_hdfs(storage: dict[str, str], url: str) -> StoreUnderTest:
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

    return StoreUnderTest(storage, find_hidden=all_files, url=url)


_BUCKETS: dict[str, Callable[[pytest.FixtureRequest], StoreUnderTest]] = {
    "s3": _open_s3,
    "gcs": _open_gcs,
    "azure": _open_azure,
    "hdfs": _open_model_hdfs,
    "hadoop": _open_hadoop,
}
STORES = ("directory", "shared_fs", *_BUCKETS)
