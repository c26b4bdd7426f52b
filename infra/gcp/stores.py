"""The state database and the buckets of a deployed stack, read from Google."""

from collections.abc import Mapping
from typing import Any, Final

from infra.findings import Unknown
from infra.gcp.events import TRIGGERS
from infra.gcp.function_stops import is_stopped
from infra.gcp.google_api import GoogleApi, GoogleError, read_or_none
from infra.gcp.names import Names
from infra.stack_program import BUCKET, Store

STORES_NEED: Final = (
    "datastore.databases.getMetadata, eventarc.triggers.get, run.services.get and "
    "storage.buckets.get"
)
UNFINISHED: Final = "a restore of the state has stopped the functions and has not finished"
FIRESTORE: Final = "https://firestore.googleapis.com/v1"
BUCKETS: Final = "https://storage.googleapis.com/storage/v1/b"
_EVENTARC: Final = "https://eventarc.googleapis.com/v1"


def database_url(names: Names, database: str = "") -> str:
    """Return the URL of a database of the project, by default of the cluster's."""
    return f"{FIRESTORE}/projects/{names.project}/databases/{database or names.database}"


def trigger_url(names: Names, trigger: str) -> str:
    """Return the URL of a trigger, a key of TRIGGERS."""
    place = f"projects/{names.project}/locations/{names.region}"
    return f"{_EVENTARC}/{place}/triggers/{names.part(trigger)}"


def read_database(names: Names, api: GoogleApi, database: str = "") -> Mapping[str, Any] | None:
    """Read a database of the project, by default the cluster's.

    Return None for a missing database. Raise GoogleError for other failures.
    """
    return read_or_none(api, database_url(names, database))


def read_stores(names: Names, api: GoogleApi) -> list[Store] | Unknown:
    """Return the database and both buckets, and whether the triggers exist; or Unknown.

    Return Unknown if Google refuses a call. A restore of a lost database deletes the triggers of
    the former database, so that the next deployment creates the triggers again.
    """
    try:
        has_database = read_database(names, api) is not None
        is_restoring = is_stopped(names, api, "api")
        missing = [
            names.part(trigger)
            for trigger in TRIGGERS
            if read_or_none(api, trigger_url(names, trigger)) is None
        ]
        buckets = [
            Store(BUCKET, name, read_or_none(api, f"{BUCKETS}/{name}") is not None)
            for name in (names.objects, names.checkpoints)
        ]
    except GoogleError as error:
        return Unknown(STORES_NEED, str(error))
    trouble = f"{' and '.join(missing)} must be created again" if missing else ""
    refusal = UNFINISHED if is_restoring else ""
    return [Store("database", names.database, has_database, trouble, refusal), *buckets]
