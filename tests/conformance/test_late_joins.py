"""Two clients that join equal parts at the same time.

The first file appears between the second client's look for the file and for the parts.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.folder_files import remove_unfinished_writes
from control_plane.checkpoint_stores.folder_parts import FolderPartsUpload
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from detcloud.shared.azure import AzureContainer
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.s3 import Bucket
from detcloud.shared.webhdfs_paths import HdfsPaths
from tests.conformance.checkpoint_files import Memory, large_file, send_part
from tests.conformance.every_store import new_storage

CONTENT = b"of one part"
MD5 = hashlib.md5(CONTENT).hexdigest()
# The function with which a client of each store looks for the parts.
LOOKS: dict[str, tuple[Any, str]] = {
    "directory": (os, "scandir"),
    "s3": (Bucket, "request"),
    "azure": (AzureContainer, "uncommitted_blocks"),
    "hdfs": (HdfsPaths, "entries"),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_late_join_finds_the_file_of_the_winner(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_checkpoint_files(new_storage(kind, request, tmp_path))
    file = large_file("5/6/0/uuid/large", CONTENT)
    first, second = (files.upload_in_parts(file, Memory()) for _ in range(2))
    assert first is not None
    assert second is not None
    first.stored_parts()
    send_part(first, 1, CONTENT, tmp_path)
    owner, name = LOOKS[kind]
    look, outcomes = getattr(owner, name), list[bool]()

    def look_late(self: Any, *named: Any) -> Any:
        if not outcomes:
            outcomes.append(False)
            third = files.upload_in_parts(file, Memory())
            assert third is not None
            outcomes[0] = third.join()
        return look(self, *named)

    monkeypatch.setattr(owner, name, look_late)
    assert not second.join()
    assert outcomes == [True]
    assert list(files.list_files(("5", "6", "0", "uuid"))) == [("large", len(CONTENT))]


def md5_after(work: Callable[[], object]) -> Callable[[], Any]:
    """Return a function that does some work, and then begins an MD5."""

    def new_md5() -> Any:
        work()
        return hashlib.md5()

    return new_md5


def test_folder_file_that_appears_during_the_comparison_is_found(tmp_path: Path) -> None:
    path, outcomes = "5/6/0/uuid/large", list[bool]()
    first = FolderPartsUpload(tmp_path, path, len(CONTENT), MD5)
    store_only_part(first, tmp_path)
    join_first = md5_after(lambda: outcomes.append(first.join()))
    second = FolderPartsUpload(tmp_path, path, len(CONTENT), MD5, new_md5=join_first)
    assert not second.join()
    assert outcomes == [True]
    assert (tmp_path / path).read_bytes() == CONTENT


def test_folder_parts_that_are_deleted_during_the_comparison_are_a_conflict(
    tmp_path: Path,
) -> None:
    delete_parts = md5_after(lambda: remove_unfinished_writes(tmp_path, "uuid"))
    path = "5/6/0/uuid/large"
    upload = FolderPartsUpload(tmp_path, path, len(CONTENT), MD5, new_md5=delete_parts)
    store_only_part(upload, tmp_path)
    with pytest.raises(PartsConflict, match="were deleted"):
        upload.join()


def store_only_part(upload: FolderPartsUpload, folder: Path) -> None:
    """Begin the upload and store the only part."""
    upload.stored_parts()
    source = folder / "source"
    source.write_bytes(CONTENT)
    upload.store_part(1, "", str(source))
