"""Buckets that keep versions: removals of the collector, and other deletions."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import requests

from control_plane.checkpoint_stores.bucket_files import (
    BucketFiles,
    CheckpointBucket,
    ObjectVersions,
)
from detcloud.shared.gcs import GcsBucket
from tests.conftest import require
from tests.emulators.seaweedfs import SeaweedFs

FOLDER = ("3", "4", "1", "0a1b2c3d-0000-4000-8000-000000000001")
PREFIX = "/".join((*FOLDER, ""))


@dataclass(frozen=True)
class VersionedStore:
    """An empty bucket that keeps versions."""

    bucket: Any
    """The bucket of detcloud's code."""
    restore: Callable[[str], None]
    """Restores the newest version of a deleted key, as the documentation describes."""

    @property
    def versions(self) -> ObjectVersions:
        versions: ObjectVersions = self.bucket.versions
        return versions

    def purging_files(self) -> BucketFiles:
        bucket: CheckpointBucket = self.bucket
        return BucketFiles(bucket, versions=self.versions)

    def listed_versions(self) -> list[str]:
        """The key of each version and each delete marker."""
        return sorted(key for key, _ in self.versions.list_versions(""))


@pytest.fixture
def versioned_store(s3: SeaweedFs) -> VersionedStore:
    bucket = s3.bucket("of/a")
    name = bucket.place.name
    s3.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def restore(key: str) -> None:
        found = s3.client.list_object_versions(Bucket=name, Prefix=f"of/a/{key}")
        for marker in found.get("DeleteMarkers", ()):
            if marker["IsLatest"]:
                s3.client.delete_object(
                    Bucket=name, Key=marker["Key"], VersionId=marker["VersionId"]
                )

    return VersionedStore(bucket, restore)


class VersionedGoogle(requests.Session):
    """The names of objects in a bucket of Google's with versions, and all their generations.

    "Object Versioning" of Google's documentation: a deletion without a generation keeps the live
    version, and a deletion with a generation is final.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_mtls = False
        self.live: dict[str, int] = {}
        self.generations: list[tuple[str, int]] = []

    def store(self, name: str) -> None:
        self.live[name] = len(self.generations) + 100
        self.generations.append((name, self.live[name]))

    def request(self, method: Any, url: Any, *named: Any, **options: Any) -> requests.Response:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        status, answer = 200, dict[str, Any]()
        if method == "DELETE":
            name = unquote(parts.path.rpartition("/o/")[2])
            known = (name, int(query.get("generation", self.live.get(name, 0))))
            status = 204 if known in self.generations else 404
            if "generation" in query and known in self.generations:
                self.generations.remove(known)
            if self.live.get(name) == known[1]:
                del self.live[name]
        else:
            assert (method, parts.path) == ("GET", "/storage/v1/b/ours/o")
            found = self.generations if query.get("versions") == "true" else self.live.items()
            answer["items"] = [
                {"name": name, "generation": str(generation), "size": "1"}
                for name, generation in sorted(found)
                if name.startswith(query["prefix"])
            ]
        response = requests.Response()
        response.status_code, response._content = status, json.dumps(answer).encode()
        response.headers["Content-Type"] = "application/json"
        response.request = requests.Request(method, url).prepare()
        return response


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> tuple[VersionedGoogle, GcsBucket]:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    session = VersionedGoogle()
    credentials = require("google.auth.credentials").AnonymousCredentials()
    return session, GcsBucket("ours", "of/a", credentials, session=session)


def test_collected_folder_leaves_no_generation(google: tuple[VersionedGoogle, GcsBucket]) -> None:
    session, bucket = google
    kept, weights, state = "of/a/3/4/1/other", f"of/a/{PREFIX}weights", f"of/a/{PREFIX}state"
    for name in (kept, weights, weights, state):
        session.store(name)
    bucket.delete(f"{PREFIX}state")
    assert sorted(session.live) == [weights, kept]
    files = BucketFiles(bucket, versions=bucket.versions)
    assert sum(files.remove_folder(FOLDER)) == 3
    assert [name for name, _ in session.generations] == [kept]
    assert sum(files.remove_folder(FOLDER)) == 0


def test_removal_without_purge_keeps_the_generation(
    google: tuple[VersionedGoogle, GcsBucket],
) -> None:
    session, bucket = google
    session.store(f"of/a/{PREFIX}weights")
    assert sum(BucketFiles(bucket).remove_folder(FOLDER)) == 1
    assert not session.live
    assert len(session.generations) == 1


def test_vanished_generation_is_no_error(google: tuple[VersionedGoogle, GcsBucket]) -> None:
    _, bucket = google
    bucket.versions.delete_version(f"{PREFIX}weights", "7")


def test_deleted_file_can_be_restored(versioned_store: VersionedStore) -> None:
    key = f"{PREFIX}weights"
    versioned_store.bucket.write(key, [b"first"])
    versioned_store.bucket.delete(key)
    assert not list(versioned_store.bucket.list_objects(""))
    versioned_store.restore(key)
    assert b"".join(versioned_store.bucket.read(key)) == b"first"


def test_replaced_file_keeps_its_former_version(versioned_store: VersionedStore) -> None:
    key = f"{PREFIX}weights"
    versioned_store.bucket.write(key, [b"first"])
    versioned_store.bucket.write(key, [b"second"])
    assert b"".join(versioned_store.bucket.read(key)) == b"second"
    assert versioned_store.listed_versions() == [key, key]


def test_collected_folder_leaves_no_version(versioned_store: VersionedStore) -> None:
    kept = "3/4/1/other/weights"
    versioned_store.bucket.write(kept, [b"kept"])
    for name in ("manifest.json", "weights", "deep/state"):
        versioned_store.bucket.write(PREFIX + name, [b"first"])
    versioned_store.bucket.write(f"{PREFIX}weights", [b"second"])
    versioned_store.bucket.delete(f"{PREFIX}deep/state")
    removed = sum(versioned_store.purging_files().remove_folder(FOLDER))
    assert removed >= 4
    assert versioned_store.listed_versions() == [kept]
    # A repetition, as after a crash, finds nothing.
    assert sum(versioned_store.purging_files().remove_folder(FOLDER)) == 0


def test_interrupted_collection_continues(versioned_store: VersionedStore) -> None:
    for name in ("a", "b", "c"):
        versioned_store.bucket.write(PREFIX + name, [b"x"])
    steps = versioned_store.purging_files().remove_folder(FOLDER)
    while next(steps) == 0:
        pass
    assert len(versioned_store.listed_versions()) == 2
    assert sum(versioned_store.purging_files().remove_folder(FOLDER)) == 2
    assert versioned_store.listed_versions() == []


def test_single_file_is_purged_without_files_of_similar_names(
    versioned_store: VersionedStore,
) -> None:
    for name in ("state", "state.json"):
        versioned_store.bucket.write(PREFIX + name, [b"x"])
    versioned_store.purging_files().remove_file(FOLDER, "state")
    assert versioned_store.listed_versions() == [f"{PREFIX}state.json"]


def test_removal_without_purge_keeps_the_versions(versioned_store: VersionedStore) -> None:
    versioned_store.bucket.write(f"{PREFIX}weights", [b"x"])
    assert sum(BucketFiles(versioned_store.bucket).remove_folder(FOLDER)) == 1
    assert not list(versioned_store.bucket.list_objects(""))
    versioned_store.restore(f"{PREFIX}weights")
    assert b"".join(versioned_store.bucket.read(f"{PREFIX}weights")) == b"x"


def test_purge_empties_a_bucket_without_versions(s3: SeaweedFs) -> None:
    bucket = s3.bucket()
    bucket.write(f"{PREFIX}weights", [b"x"])
    files = BucketFiles(bucket, versions=bucket.versions)
    assert sum(files.remove_folder(FOLDER)) == 1
    assert not list(bucket.list_objects(""))
