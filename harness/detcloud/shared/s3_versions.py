"""The versions of objects in a bucket of S3 that keeps versions."""

from __future__ import annotations

from collections.abc import Iterator

from detcloud.shared.s3_requests import S3Requests

# The lists in a page of object versions. A delete marker is a version without content.
_LISTS = ("Versions", "DeleteMarkers")


class S3Versions:
    """The versions of a bucket's objects. Every method raises bucket errors."""

    def __init__(self, requests: S3Requests) -> None:
        self._requests = requests
        self._key_prefix = requests.place.key_prefix

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the version of each version below a prefix, and of each delete marker.

        Keys are relative to the place's prefix. In a bucket without versions, each object has the
        version "null". Pages are requested during the iteration. Raise AccessDenied without the
        permission s3:ListBucketVersions.
        """
        with self._requests.translate_errors(prefix):
            for page in self._requests.pages("list_object_versions", prefix):
                for name in _LISTS:
                    for entry in page.get(name, ()):
                        key = str(self._requests.field(prefix, entry, "Key"))
                        version = str(self._requests.field(key, entry, "VersionId"))
                        yield key.removeprefix(self._key_prefix), version

    def delete_version(self, key: str, version: str) -> None:
        """Delete a version for good. Do nothing if the version does not exist.

        Raise AccessDenied without the permission s3:DeleteObjectVersion.
        """
        with self._requests.translate_errors(key):
            self._requests.client.delete_object(**self._requests.arguments(key), VersionId=version)
