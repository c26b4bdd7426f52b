"""The places of scheduled backups: a folder, or a bucket of Amazon S3 or Google Cloud Storage."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.s3 import Bucket


class BackupPlace(Protocol):
    """A place that stores archives under names. All methods raise OSError and BucketError."""

    def store(self, name: str, archive: Path) -> None:
        """Store a copy of a file as the new archive `name`, completely or not at all."""

    def names(self) -> list[str]:
        """Return the names of all stored files."""

    def delete(self, name: str) -> None:
        """Delete an archive. Do nothing if the archive is missing."""


class FolderPlace:
    """Archives in a folder, which may be on another disk or a network file system.

    A missing folder is created. Archives are readable by their owner only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, name: str, archive: Path) -> None:
        """Copy an archive into the folder. The copy gets its name when it is complete."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._folder / f".{name}.partial"
        partial.unlink(missing_ok=True)
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as copy, archive.open("rb") as source:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of the files in the folder."""
        return [path.name for path in self._folder.iterdir() if path.is_file()]

    def delete(self, name: str) -> None:
        """Delete an archive. Do nothing if the archive is missing."""
        (self._folder / name).unlink(missing_ok=True)


class BucketArchives:
    """Archives in a bucket, below a prefix."""

    def __init__(self, bucket: Bucket | GcsBucket) -> None:
        self._bucket = bucket

    def store(self, name: str, archive: Path) -> None:
        """Upload an archive. Raise BucketError if another archive has the name already."""
        if not self._bucket.send(name, archive):
            raise BucketError(f"the bucket has another file {name} already")

    def names(self) -> list[str]:
        """Return the names of the objects below the prefix."""
        return [key for key, _ in self._objects() if "/" not in key]

    def delete(self, name: str) -> None:
        """Delete an archive. Do nothing if the archive is missing."""
        self._bucket.delete(name)

    def _objects(self) -> Iterable[tuple[str, int]]:
        return self._bucket.list_objects("")


def open_backup_place(text: str) -> BackupPlace:
    """Return the place of `FOLDER`, `s3://BUCKET[/PREFIX]` or `gs://BUCKET[/PREFIX]`.

    Buckets use the credentials of this process's environment. Nothing is sent.

    Raises:
        ValueError: the address is invalid.
        BucketError: the package of the cloud or the credentials are missing.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        return FolderPlace(Path(text).expanduser().absolute())
    parts = urlsplit(text)
    prefix = parts.path.strip("/")
    if scheme not in ("s3", "gs") or not parts.netloc or parts.query:
        raise ValueError(f"{text!r} is not a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    if scheme == "s3":
        return BucketArchives(Bucket(BucketPlace(parts.netloc, prefix)))
    return BucketArchives(GcsBucket(parts.netloc, prefix))
