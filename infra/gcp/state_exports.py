"""Exports of the state database in Cloud Storage, for copies in another region.

An export is a folder of a bucket. Firestore writes the file FOLDER.overall_export_metadata last, so
that an export with this file is complete.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from infra.bucket_objects import NoBucket
from infra.gcp.google_api import GoogleApi
from infra.gcp.names import Names
from infra.gcp.object_copies import GcsBuckets
from infra.gcp.stores import FIRESTORE, database_url
from infra.restoration import RestoreFailed

SUMMARY: Final = ".overall_export_metadata"
SCHEME: Final = "gs://"


@dataclass(frozen=True)
class StateExport:
    """A complete export."""

    bucket: str
    """The bucket of the export."""
    folder: str
    """The folder of the export, without a slash at the end."""

    @property
    def url(self) -> str:
        """The folder in the form gs://BUCKET/FOLDER."""
        return f"{SCHEME}{self.bucket}/{self.folder}"

    @property
    def time(self) -> datetime | None:
        """The start of an export by the cluster. A manual export has no time."""
        try:
            begun = datetime.strptime(self.folder.rpartition("/")[2], "%Y%m%dT%H%M%SZ")
        except ValueError:
            return None
        return begun.replace(tzinfo=UTC)


def is_export(source: str) -> bool:
    """Return whether a source is a place of exports, not the name of a backup."""
    return source.startswith(SCHEME)


def find_export(buckets: GcsBuckets, source: str) -> StateExport:
    """Return the newest complete export at or below `source`, gs://BUCKET or gs://BUCKET/PREFIX.

    The names of the cluster's exports are times, so that the last name is the newest. Raise
    RestoreFailed without a complete export, and GoogleError.
    """
    bucket, _, prefix = source.removeprefix(SCHEME).partition("/")
    try:
        keys = [item.key for item in buckets.objects(bucket, prefix)]
    except NoBucket:
        raise RestoreFailed(f"--from is {source}: the bucket {bucket} does not exist") from None
    folders = [key.rpartition("/")[0] for key in keys if key.endswith(SUMMARY)]
    if not folders:
        raise RestoreFailed(
            f"--from is {source}: expected a complete export of Firestore, with a file "
            f"FOLDER/FOLDER{SUMMARY}; an export that is still written has none yet"
        )
    return StateExport(bucket, max(folders))


def create_database(names: Names, api: GoogleApi, database: str, kms_key: str) -> str:
    """Start the creation of an empty database, and return Google's operation. Raise GoogleError.

    `kms_key` encrypts the database; empty for Google's own keys.
    """
    body: dict[str, Any] = {"locationId": names.region, "type": "FIRESTORE_NATIVE"}
    if kms_key:
        body["cmekConfig"] = {"kmsKeyName": kms_key}
    url = f"{FIRESTORE}/projects/{names.project}/databases?databaseId={database}"
    return str(api.call("POST", url, body)["name"])


def import_export(names: Names, api: GoogleApi, export: StateExport, database: str) -> str:
    """Start the import of an export into a database, and return Google's operation.

    Raise GoogleError.
    """
    url = f"{database_url(names, database)}:importDocuments"
    return str(api.call("POST", url, {"inputUriPrefix": export.url})["name"])


def imported_urls(operations: Mapping[str, Any]) -> list[str]:
    """Return the URLs of all imported exports, from the list of a database's operations."""
    return [
        str(operation.get("metadata", {}).get("inputUriPrefix", ""))
        for operation in operations.get("operations", ())
        if operation.get("done") and "error" not in operation
    ]
