"""Two clients that join equal parts at the same time.

The first file appears between the second client's look for the file and for the parts.
"""

from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.folder_files import remove_unfinished_writes
from control_plane.checkpoint_stores.folder_parts import FolderPartsUpload
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from detcloud.shared.azure import AzureContainer
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.s3_parts import S3PartsUpload
from detcloud.shared.webhdfs_paths import HdfsPaths
from tests.conformance.checkpoint_files import Memory, large_file, send_part
from tests.conformance.every_store import new_storage

CONTENT = b"of one part"
LOOKS: dict[str, tuple[type, str]] = {
    "directory": (FolderPartsUpload, "_part_numbers"),
    "s3": (S3PartsUpload, "_parts"),
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


def test_folder_file_that_appears_during_the_comparison_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "5/6/0/uuid/large"
    first, second = (FolderPartsUpload(tmp_path, path, len(CONTENT)) for _ in range(2))
    store_only_part(first, tmp_path)
    outcomes: list[bool] = []
    monkeypatch.setattr(second, "_check_content", lambda _: outcomes.append(first.join()))
    assert not second.join()
    assert outcomes == [True]
    assert (tmp_path / path).read_bytes() == CONTENT


def test_folder_parts_that_are_deleted_during_the_comparison_are_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = FolderPartsUpload(tmp_path, "5/6/0/uuid/large", len(CONTENT))
    store_only_part(upload, tmp_path)
    monkeypatch.setattr(
        upload, "_check_content", lambda _: remove_unfinished_writes(tmp_path, "uuid")
    )
    with pytest.raises(PartsConflict, match="were deleted"):
        upload.join()


def store_only_part(upload: FolderPartsUpload, folder: Path) -> None:
    """Begin the upload and store the only part."""
    upload.stored_parts()
    source = folder / "source"
    source.write_bytes(CONTENT)
    upload.store_part(1, "", str(source))
