"""Objects of Google's buckets and versions of objects, for restores. A version is a generation."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from infra.bucket_objects import NoBucket, ObjectVersion
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.stores import BUCKETS

_FIELDS: Final = "items(name,size,generation,timeCreated,timeDeleted),nextPageToken"


class GcsBuckets:
    """The buckets that the deployer may read. Cloud Storage itself copies objects.

    `root` is the address of Cloud Storage's interface of buckets.
    """

    def __init__(self, api: GoogleApi, root: str = BUCKETS) -> None:
        self._api = api
        self._root = root

    def objects(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield the current objects below a prefix. Raise NoBucket and GoogleError."""
        for item in self._list(bucket, {"prefix": prefix}):
            yield ObjectVersion(item["name"], "", int(item["size"]))

    def versions(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield all versions below a prefix. Raise NoBucket and GoogleError."""
        for item in self._list(bucket, {"prefix": prefix, "versions": "true"}):
            yield ObjectVersion(
                item["name"],
                item["generation"],
                int(item["size"]),
                _parse_time(item.get("timeCreated")),
                _parse_time(item.get("timeDeleted")),
            )

    def copy(self, source: str, found: ObjectVersion, target: str) -> None:
        """Copy a version to another bucket. Raise GoogleError.

        Google copies a large object in several calls.
        """
        key = quote(found.key, safe="")
        url = f"{self._root}/{source}/o/{key}/rewriteTo/b/{target}/o/{key}"
        query = {"sourceGeneration": found.version} if found.version else {}
        while True:
            answer = self._api.call("POST", f"{url}?{urlencode(query)}")
            if answer.get("done"):
                return
            query["rewriteToken"] = str(answer["rewriteToken"])

    def _list(self, bucket: str, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """Yield the listed objects of a bucket. Raise NoBucket and GoogleError."""
        url = f"{self._root}/{bucket}/o?{urlencode({**query, 'fields': _FIELDS})}"
        try:
            for page in read_pages(self._api, url):
                yield from page.get("items", ())
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            raise NoBucket(bucket) from None


def _parse_time(text: str | None) -> datetime | None:
    """Return a time of the interface; keep a missing time."""
    return None if text is None else datetime.fromisoformat(text)
