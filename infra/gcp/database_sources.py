"""The sources of a restored state on Google Cloud: a moment of the database, or a backup."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from infra.drain_clock import Clock
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError
from infra.gcp.names import Names
from infra.gcp.stores import FIRESTORE
from infra.restoration import RestoreFailed, show_time
from infra.stack_program import Progress

RESTORE_SECONDS_MAX: Final = 6 * 3600.0
LOOK_SECONDS: Final = 5.0


def check_moment(moment: datetime, database: Mapping[str, Any]) -> datetime:
    """Return the whole minute of the database's recovery at or before `moment`.

    Firestore keeps a version of each whole minute. Raise RestoreFailed if the recovery does not
    cover the minute.
    """
    minute = moment.replace(second=0, microsecond=0)
    first = datetime.fromisoformat(database["earliestVersionTime"])
    now = datetime.now(UTC)
    if not first <= minute <= now:
        raise RestoreFailed(
            f"--time is {show_time(moment)}: expected a moment from {show_time(first)} to "
            f"{show_time(now)}, which the recovery of the database covers"
        )
    return minute


def choose_backup(names: Names, api: GoogleApi, name: str) -> Mapping[str, Any]:
    """Return the backup `name`, or the newest backup of the cluster's database if empty.

    Raise RestoreFailed if no such backup can be restored, and GoogleError.
    """
    if name:
        try:
            backup = api.call("GET", f"{FIRESTORE}/{name}")
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            raise RestoreFailed(
                f"--from is {name}: this backup does not exist; `gcloud firestore backups list "
                f"--project={names.project}` lists the backups"
            ) from None
        if backup.get("state") != "READY":
            raise RestoreFailed(f"--from is {name}: the backup is not READY")
        return backup
    database = f"projects/{names.project}/databases/{names.database}"
    listed = api.call("GET", f"{FIRESTORE}/projects/{names.project}/locations/-/backups")
    if places := listed.get("unreachable"):
        raise RestoreFailed(
            f"Firestore did not list the backups of {', '.join(places)}: try again, or name a "
            "backup with --from"
        )
    found = [
        backup
        for backup in listed.get("backups", ())
        if backup["database"] == database and backup.get("state") == "READY"
    ]
    if not found:
        raise RestoreFailed(
            f"the database {names.database} is lost, and no backup of it exists: Firestore deletes "
            "the point-in-time recovery with the database, and backups when they expire"
        )
    return max(found, key=lambda backup: str(backup["snapshotTime"]))


def restore_backup(
    names: Names,
    api: GoogleApi,
    backup: Mapping[str, Any],
    database: str,
    kms_key: str,
) -> str:
    """Start the restore of a backup into a new database, and return Google's operation.

    Raise GoogleError.
    """
    body: dict[str, Any] = {"databaseId": database, "backup": backup["name"]}
    if kms_key:
        body["encryptionConfig"] = {"customerManagedEncryption": {"kmsKeyName": kms_key}}
    url = f"{FIRESTORE}/projects/{names.project}/databases:restore"
    return str(api.call("POST", url, body)["name"])


def wait_for_operation(
    api: GoogleApi, operation: str, clock: Clock, progress: Progress, minute_text: str
) -> None:
    """Wait until an operation of Firestore has ended, and report `minute_text` each minute.

    Raise GoogleError if the operation failed, and RestoreFailed after RESTORE_SECONDS_MAX.
    """
    begun = told = clock.seconds()
    while True:
        found = api.call("GET", f"{FIRESTORE}/{operation}")
        if found.get("done"):
            if error := found.get("error"):
                raise GoogleError(int(error.get("code", 0)), str(error.get("message", "")))
            return
        now = clock.seconds()
        if now - begun > RESTORE_SECONDS_MAX:
            raise RestoreFailed(
                f"{minute_text} for {RESTORE_SECONDS_MAX / 3600:g} hours: run the restore again "
                "when the database can be read"
            )
        if now - told >= 60:
            told = now
            progress(f"{minute_text} for {now - begun:.0f} s")
        clock.sleep(LOOK_SECONDS)
