"""The files of checkpoints in a bucket: every object whose key begins with a checkpoint's own path.

There are no folders in a bucket, so none is left empty, and what is deleted is gone for good. A
path that is removed is built from ids that the cluster gave, as for folders. Files are fetched from
the bucket itself, by URLs that its credentials sign.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from control_plane.checkpoint_stores.checkpoint_files import (
    FileDigests,
    LargeFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.checkpoint_stores.folder_files import check_parts
from control_plane.checkpoint_stores.keyed_files import KeyedFiles, KeyedStore
from control_plane.checkpoint_stores.store_type import StorageFields
from detcloud.shared.azure import azure_container_of
from detcloud.shared.azure_parts import AzurePartsUpload
from detcloud.shared.azure_place import AzurePlace
from detcloud.shared.bucket_listing import list_below
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.gcs import gcs_bucket_of
from detcloud.shared.gcs_parts import GcsPartsUpload
from detcloud.shared.s3 import bucket_of
from detcloud.shared.s3_parts import S3PartsUpload
from detcloud.shared.upload_parts import SessionMemory


class CheckpointBucket(KeyedStore, Protocol):
    """The requests that checkpoints need of a bucket, a `detcloud.shared.s3.Bucket` for one."""

    def abort_uploads(self, prefix: str) -> None: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...

    def signed_get_url(self, key: str, seconds: int) -> str: ...


SignUpload = Callable[[str, int, FileDigests], tuple[str, dict[str, str]]]
"""Signs the upload of a key's content for so many seconds: its URL and headers."""

OpenParts = Callable[[LargeFile, SessionMemory], PartsUpload]
"""Opens the upload in parts of a file, whose path is its key."""

EndSession = Callable[[str], None]
"""Ends the session of an upload in parts."""


class SigningBucket(CheckpointBucket, Protocol):
    """A bucket that some credentials sign URLs for, and others do not."""

    @property
    def can_sign(self) -> bool: ...


def open_bucket_files(fields: StorageFields) -> "BucketFiles":
    """Open the bucket of a spec's `storage`. Raises OSError."""
    bucket = bucket_of(BucketPlace.from_storage(fields))

    def sign_upload(key: str, seconds: int, digests: FileDigests) -> tuple[str, dict[str, str]]:
        return bucket.signed_put_url(key, seconds, digests.size, digests.sha256, digests.md5)

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload:
        return S3PartsUpload(bucket, file.path, file.size)

    return BucketFiles(bucket, sign_upload, open_parts)


def open_gcs_files(fields: StorageFields) -> "SigningFiles":
    """Open the bucket of Google's that a spec's `storage` names. Raises OSError."""
    bucket = gcs_bucket_of(fields["bucket"], fields.get("prefix", ""))

    def sign_upload(key: str, seconds: int, digests: FileDigests) -> tuple[str, dict[str, str]]:
        return bucket.signed_put_url(key, seconds, digests.size, digests.sha256)

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload:
        return GcsPartsUpload(bucket, file.path, file.size, file.md5, memory)

    return SigningFiles(bucket, sign_upload, open_parts, bucket.end_session)


def open_azure_files(fields: StorageFields) -> "SigningFiles":
    """Open the container of Azure's that a spec's `storage` names. Raises OSError."""
    container = azure_container_of(AzurePlace.from_storage(fields))

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload:
        return AzurePartsUpload(container, file.path, file.size)

    return SigningFiles(container, open_parts=open_parts)


def bucket_name(fields: StorageFields) -> str:
    """The bucket of a spec's `storage` as users see it."""
    return str(BucketPlace.from_storage(fields))


class BucketFiles(KeyedFiles):
    """The CheckpointFiles of a bucket."""

    def __init__(
        self,
        bucket: CheckpointBucket,
        sign_upload: SignUpload | None = None,
        open_parts: OpenParts | None = None,
        end_session: EndSession | None = None,
    ) -> None:
        """Without `sign_upload` the server stores what users upload, and without `open_parts` no
        file is uploaded in parts. `end_session` is that of stores whose uploads have sessions.
        """
        super().__init__(bucket)
        self._bucket = bucket
        self._sign_upload = sign_upload
        self._open_parts = open_parts
        self._end_session = end_session

    def list_keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        return list_below(self._bucket, prefix)

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        check_parts(parts)
        prefix = "/".join((*parts, ""))
        # First, so that nothing that was cut short appears in the end.
        self._bucket.abort_uploads(prefix)
        yield 0
        for key, _ in list_below(self._bucket, prefix):
            self._bucket.delete(key)
            yield 1

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        pass

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        prefix = f"{experiment_id}/{trial_id}/"
        previous: tuple[str, ...] = ()
        for key, _ in list_below(self._bucket, prefix):
            epoch, *rest = key.removeprefix(prefix).split("/", 2)
            # Keys come in their order, so those of one folder come one after the other.
            if len(rest) == 2 and (epoch, rest[0]) != previous:
                previous = epoch, rest[0]
                yield epoch, rest[0]

    def signed_url(self, path: str, seconds: int) -> str | None:
        return self._bucket.signed_get_url(path, seconds)

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        if self._sign_upload is None:
            return None
        return SignedUpload(*self._sign_upload(path, seconds, digests))

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        return None if self._open_parts is None else self._open_parts(file, memory)

    def end_session(self, session: str) -> None:
        if self._end_session is not None:
            self._end_session(session)


class SigningFiles(BucketFiles):
    """The CheckpointFiles of a bucket that signs URLs where its credentials can."""

    def __init__(
        self,
        bucket: SigningBucket,
        sign_upload: SignUpload | None = None,
        open_parts: OpenParts | None = None,
        end_session: EndSession | None = None,
    ) -> None:
        self._can_sign = bucket.can_sign
        signed = sign_upload if self._can_sign else None
        super().__init__(bucket, signed, open_parts, end_session)

    def signed_url(self, path: str, seconds: int) -> str | None:
        return super().signed_url(path, seconds) if self._can_sign else None
