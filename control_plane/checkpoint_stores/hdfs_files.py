"""The checkpoint files in HDFS, which removes a folder recursively in a single request."""

import re
from collections.abc import Iterator

from control_plane.checkpoint_stores.checkpoint_files import (
    FileDigests,
    LargeFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.checkpoint_stores.folder_files import check_parts
from control_plane.checkpoint_stores.keyed_files import KeyedFiles
from control_plane.checkpoint_stores.store_type import StorageFields
from detcloud.shared.upload_parts import SessionMemory
from detcloud.shared.webhdfs import HdfsFolder, hdfs_place
from detcloud.shared.webhdfs_upload import HdfsPartsUpload

_EPOCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def open_hdfs_files(fields: StorageFields) -> "HdfsFiles":
    """Return the files of the HDFS folder in a specification's `storage`.

    Raises BucketError, an OSError, if `hdfs_url` names no namenode.
    """
    return HdfsFiles(HdfsFolder.from_storage(fields))


def hdfs_name(fields: StorageFields) -> str:
    """Return the name of an HDFS folder for users, without logins in the URLs."""
    return hdfs_place(fields["hdfs_url"], fields["hdfs_path"])


class HdfsFiles(KeyedFiles):
    """The CheckpointFiles of a folder in HDFS, which signs no URLs."""

    def __init__(self, folder: HdfsFolder) -> None:
        super().__init__(folder)
        self._folder = folder

    def list_keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        return self._folder.list_objects(prefix)

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        check_parts(parts)
        folder = "/".join(parts)
        # A namenode removes a folder in a single request, but every file costs the datanodes work,
        # so the files count for the rate limit.
        count = sum(1 for _ in self._folder.list_objects(f"{folder}/"))
        yield 0
        self._folder.remove_folder(folder)
        yield count
        if prune:
            self._folder.remove_empty_folders("/".join(parts[:-1]))

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        check_parts(parts)
        self._folder.remove_empty_folders("/".join(parts))

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        trial = f"{experiment_id}/{trial_id}"
        for epoch in self._folder.list_folders(trial):
            if _EPOCH.fullmatch(epoch):
                yield from (
                    (epoch, folder) for folder in self._folder.list_folders(f"{trial}/{epoch}")
                )

    def signed_url(self, path: str, seconds: int) -> str | None:
        return None

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        return None

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        if not self._folder.can_join:
            return None
        return HdfsPartsUpload(self._folder, file.path, file.size)

    def end_session(self, session: str) -> None:
        pass
