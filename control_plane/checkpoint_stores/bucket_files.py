"""The checkpoint files in a bucket: the objects below the path of each checkpoint.

A bucket has no folders, so none becomes empty, and deletions are durable. The paths of removals
consist of ids that the cluster assigned, as for folders. Users download files from the bucket
itself, with URLs that the cluster's credentials sign.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from control_plane.checkpoint_stores.checkpoint_files import (
    PURGE_VERSIONS,
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
from detcloud.shared.bucket_errors import AccessDenied
from detcloud.shared.bucket_listing import check_listed, list_below
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.gcs import gcs_bucket_of
from detcloud.shared.gcs_parts import GcsPartsUpload
from detcloud.shared.s3 import bucket_of
from detcloud.shared.s3_parts import S3PartsUpload
from detcloud.shared.upload_parts import SessionMemory

log = logging.getLogger(__name__)


class CheckpointBucket(KeyedStore, Protocol):
    """The requests to a bucket that checkpoints need; `detcloud.shared.s3.Bucket` has them all.

    `abort_uploads` aborts the unfinished uploads below a prefix. `list_objects` yields the keys
    below a prefix and their sizes in bytes. `signed_get_url` signs a download, valid for `seconds`.
    """

    def abort_uploads(self, prefix: str) -> None: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...

    def signed_get_url(self, key: str, seconds: int) -> str: ...


class ObjectVersions(Protocol):
    """The versions of the objects in a bucket that keeps versions. Every method raises OSError.

    `list_versions` yields the key and the version of each version below a prefix, current and older
    ones. `delete_version` deletes a version for good.
    """

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]: ...

    def delete_version(self, key: str, version: str) -> None: ...


SignUpload = Callable[[str, int, FileDigests], tuple[str, dict[str, str]]]
"""Signs a request that stores content with these digests at a key.

Arguments: the key, the validity in seconds, the digests. Returns the URL and the headers to send.
"""

OpenParts = Callable[[LargeFile, SessionMemory], PartsUpload | None]
"""Opens the upload in parts of a file to the key `path`; returns None if the bucket accepts only
whole files.
"""

EndSession = Callable[[str], None]
"""Aborts the upload in parts that has this session."""


class SigningBucket(CheckpointBucket, Protocol):
    """A bucket for which only some kinds of credentials can sign URLs.

    `can_sign` is whether the credentials in use can.
    """

    @property
    def can_sign(self) -> bool: ...


def open_bucket_files(fields: StorageFields) -> "BucketFiles":
    """Return the files of the S3 bucket in a specification's `storage`.

    Later calls with the same `storage` reuse the client. No request is sent. `upload_in_parts` of
    the result returns None for a bucket that does not list unfinished uploads. Raises BucketError,
    an OSError, if boto3 is missing or the place is invalid.
    """
    bucket = bucket_of(BucketPlace.from_storage(fields))

    def sign_upload(key: str, seconds: int, digests: FileDigests) -> tuple[str, dict[str, str]]:
        return bucket.signed_put_url(key, seconds, digests.size, digests.sha256, digests.md5)

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        if not bucket.lists_uploads(file.path):
            # Without these lists, a resumed upload cannot determine the stored parts.
            return None
        return S3PartsUpload(bucket, file.path, file.size)

    versions = bucket.versions if PURGE_VERSIONS in fields else None
    return BucketFiles(bucket, sign_upload, open_parts, versions=versions)


def open_gcs_files(fields: StorageFields) -> "SigningFiles":
    """Return the files of the Google Cloud Storage bucket in a specification's `storage`.

    Later calls with the same bucket and prefix reuse the client. Raises BucketError, an OSError, if
    the client library or credentials are missing.
    """
    bucket = gcs_bucket_of(fields["bucket"], fields.get("prefix", ""))

    def sign_upload(key: str, seconds: int, digests: FileDigests) -> tuple[str, dict[str, str]]:
        return bucket.signed_put_url(key, seconds, digests.size, digests.sha256)

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload:
        return GcsPartsUpload(bucket, file.path, file.size, file.md5, memory)

    versions = bucket.versions if PURGE_VERSIONS in fields else None
    return SigningFiles(bucket, sign_upload, open_parts, bucket.end_session, versions=versions)


def open_azure_files(fields: StorageFields) -> "SigningFiles":
    """Return the files of the Azure container in a specification's `storage`; uploads are never
    signed.

    Later calls with the same `storage` reuse the client. Raises BucketError, an OSError, if the
    client library is missing or the place is invalid.
    """
    container = azure_container_of(AzurePlace.from_storage(fields))

    def open_parts(file: LargeFile, memory: SessionMemory) -> PartsUpload:
        return AzurePartsUpload(container, file.path, file.size)

    return SigningFiles(container, open_parts=open_parts)


def bucket_name(fields: StorageFields) -> str:
    """Return the name of an S3 bucket for users, like "s3://bucket/prefix at URL", without keys."""
    return str(BucketPlace.from_storage(fields))


class BucketFiles(KeyedFiles):
    """The CheckpointFiles of a bucket."""

    def __init__(
        self,
        bucket: CheckpointBucket,
        sign_upload: SignUpload | None = None,
        open_parts: OpenParts | None = None,
        end_session: EndSession | None = None,
        *,
        versions: ObjectVersions | None = None,
    ) -> None:
        """Configure which uploads the bucket supports, and whether removals delete versions.

        Args:
            sign_upload: signs uploads; if None, users send content to the API.
            open_parts: opens uploads in parts; if None, files are only uploaded whole.
            end_session: aborts the session of an upload; None for buckets without sessions.
            versions: removals delete all versions of a file by these requests; None if a bucket
                with versions keeps the versions of removed files.
        """
        super().__init__(bucket)
        self._versions = versions
        self._bucket = bucket
        self._sign_upload = sign_upload
        self._open_parts = open_parts
        self._end_session = end_session

    def list_keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        return list_below(self._bucket, prefix)

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        check_parts(parts)
        prefix = "/".join((*parts, ""))
        # Aborted first, so that no unfinished upload becomes an object after the listing.
        self._bucket.abort_uploads(prefix)
        yield 0
        yield from self._purge(prefix)
        for key, _ in list_below(self._bucket, prefix):
            self._bucket.delete(key)
            yield 1

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        check_parts(parts)
        key = "/".join((*parts, name))
        removed = sum(self._purge(key, only=key))
        return removed or super().remove_file(parts, name)

    def _purge(self, prefix: str, only: str = "") -> Iterator[int]:
        """Delete all versions of the files below a prefix for good; yield 1 after each deletion.

        With `only`, delete only the versions of this key. Do nothing without `versions`. If the
        store denies access to versions, log the refusal: the caller then deletes the files, and the
        bucket keeps their versions. Raises every other error of the store.
        """
        if self._versions is None:
            return
        try:
            for key, version in self._versions.list_versions(prefix):
                check_listed(self._bucket.place, prefix, key)
                if only in ("", key):
                    self._versions.delete_version(key, version)
                    yield 1
        except AccessDenied as error:
            log.warning("older versions of deleted files stay for the bucket's time: %s", error)

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        pass

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        prefix = f"{experiment_id}/{trial_id}/"
        previous: tuple[str, ...] = ()
        for key, _ in list_below(self._bucket, prefix):
            epoch, *rest = key.removeprefix(prefix).split("/", 2)
            # The listing is sorted, so the keys of a folder are consecutive.
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
    """The CheckpointFiles of a bucket that signs URLs only if its credentials can sign.

    Without such credentials, `signed_url` and `sign_upload` return None.
    """

    def __init__(
        self,
        bucket: SigningBucket,
        sign_upload: SignUpload | None = None,
        open_parts: OpenParts | None = None,
        end_session: EndSession | None = None,
        *,
        versions: ObjectVersions | None = None,
    ) -> None:
        self._can_sign = bucket.can_sign
        signed = sign_upload if self._can_sign else None
        super().__init__(bucket, signed, open_parts, end_session, versions=versions)

    def signed_url(self, path: str, seconds: int) -> str | None:
        return super().signed_url(path, seconds) if self._can_sign else None
