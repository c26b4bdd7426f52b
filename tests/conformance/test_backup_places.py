"""Places of scheduled backups: a folder, and a bucket of Amazon S3."""

from pathlib import Path

import pytest

from detcloud.shared.bucket_errors import BucketError
from local_cluster.backup_places import BackupPlace, BucketArchives, FolderPlace
from tests.emulators.seaweedfs import SeaweedFs


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupPlace:
    if request.param == "folder":
        return FolderPlace(tmp_path / "missing" / "backups")
    s3: SeaweedFs = request.getfixturevalue("s3")
    return BucketArchives(s3.bucket("labs/vision"))


def test_place_stores_lists_and_deletes_archives(place: BackupPlace, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    archive.write_bytes(b"content")
    place.store("b.tar", archive)
    place.store("a.tar", archive)
    assert sorted(place.names()) == ["a.tar", "b.tar"]
    place.delete("a.tar")
    assert place.names() == ["b.tar"]


def test_missing_archive_stores_nothing(place: BackupPlace, tmp_path: Path) -> None:
    first = tmp_path / "first.tar"
    first.write_bytes(b"")
    place.store("first.tar", first)
    with pytest.raises((OSError, BucketError)):
        place.store("b.tar", tmp_path / "missing.tar")
    assert place.names() == ["first.tar"]
