"""The restore of a cluster's state on Google Cloud.

While the database exists, the rows of a moment are read from its point-in-time recovery, and the
differences are written into the present (decision 0119). A backup is first restored into a
temporary database, and so is an export of another region. A lost database is restored from a backup
under its own name. Then a new incarnation of the state begins.

A repeated call continues. What has been done is seen in Google Cloud alone: a database that was
restored from a backup has no point-in-time recovery until the restore has finished.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final

from control_plane.gcp.firestore_client import create_client
from control_plane.gcp.state_table import FirestoreTable
from control_plane.state.table import StateTable, TableError
from infra.drain_clock import Clock
from infra.gcp.database_sources import (
    LOOK_SECONDS,
    check_moment,
    choose_backup,
    restore_backup,
    wait_for_operation,
)
from infra.gcp.document_store import DatabaseDocuments, counter_value
from infra.gcp.events import TRIGGERS
from infra.gcp.function_stops import start_functions, stop_functions
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError
from infra.gcp.object_copies import GcsBuckets
from infra.gcp.settings import Settings
from infra.gcp.state_exports import (
    StateExport,
    create_database,
    find_export,
    import_export,
    imported_urls,
    is_export,
)
from infra.gcp.stores import BUCKETS, FIRESTORE, database_url, read_database, trigger_url
from infra.restoration import (
    ObjectsReport,
    RestoreFailed,
    RestoreReport,
    RestoreRequest,
    Steps,
    show_time,
)
from infra.restored_objects import (
    StackBuckets,
    copy_siblings,
    restore_named_files,
    restore_objects,
)
from infra.restored_state import (
    NOTHING_COPIED,
    OpenTable,
    copy_state,
    copy_text,
    restart_state,
    restore_report,
    wait_until_quiet,
)
from infra.row_copy import CopyReport
from infra.stack_program import Progress

_RECOVERS: Final = "POINT_IN_TIME_RECOVERY_ENABLED"


def restore(
    settings: Settings,
    api: GoogleApi,
    request: RestoreRequest,
    progress: Progress,
    clock: Clock | None = None,
    open_table: OpenTable | None = None,
    root: str = FIRESTORE,
    buckets: str = BUCKETS,
) -> RestoreReport:
    """Restore the cluster's state, begin a new incarnation, and let the functions run again.

    All functions are stopped first. Each step is reported with its seconds. After an error or a
    crash the functions stay stopped, and the same call continues.

    Args:
        clock: measures and waits; by default the clock of this process.
        open_table: opens a database by name; by default with the environment's credentials.
        root: the address of Firestore's interface of documents.
        buckets: the address of Cloud Storage's interface of buckets.

    Raises:
        RestoreFailed: the request names nothing that can be restored, Google refused a call, or
            the database could not be written.
    """
    clock = clock or Clock()
    steps = Steps(progress, clock)
    open_table = open_table or partial(_open_database, settings.project)
    store = GcsBuckets(api, buckets)
    cluster = _Cluster(settings, api, progress, clock, steps, open_table, root, store)
    try:
        return cluster.restore(request)
    except GoogleError as error:
        raise RestoreFailed(
            f"Google refused a request; try again, which continues: {error}"
        ) from None
    except (TableError, OSError) as error:
        raise RestoreFailed(
            f"the database {settings.names.database}: {error}; try again, which continues"
        ) from None


def restore_lost_objects(
    settings: Settings,
    api: GoogleApi,
    moment: datetime | None,
    progress: Progress,
    open_table: OpenTable | None = None,
    buckets: str = BUCKETS,
) -> ObjectsReport:
    """Restore the lost objects of a stack's buckets, while the functions run.

    `buckets` is the address of Cloud Storage's interface of buckets. Raise RestoreFailed if a
    bucket of the stack does not exist, Google refused a call, or the state cannot be read. Then the
    same call continues.
    """
    open_table = open_table or partial(_open_database, settings.project)
    try:
        with open_table(settings.names.database) as table:
            names = bucket_names(settings)
            store = GcsBuckets(api, buckets)
            return restore_objects(store, names, table, moment, Steps(progress))
    except GoogleError as error:
        raise RestoreFailed(
            f"Google refused a request; try again, which continues: {error}"
        ) from None


def bucket_names(settings: Settings) -> StackBuckets:
    """Return the names of the buckets and copies of a stack."""
    names, copies = settings.names, settings.copies
    copied = {name: names.copy(name) for name in copies.buckets} if copies else {}
    return StackBuckets(names.objects, names.checkpoints, copied)


def temporary_database(database: str, backup: str) -> str:
    """Return the name of the temporary database for a backup or an export.

    Names have at most 63 characters.
    """
    return f"{database}-restoring-{sha256(backup.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class _Cluster:
    """The steps of a restore."""

    settings: Settings
    api: GoogleApi
    progress: Progress
    clock: Clock
    steps: Steps
    open_table: OpenTable
    root: str
    buckets: GcsBuckets

    @property
    def database(self) -> str:
        """The name of the cluster's database."""
        return self.settings.names.database

    def restore(self, request: RestoreRequest) -> RestoreReport:
        """Restore the state that `request` names. Raise as the function `restore`."""
        found = read_database(self.settings.names, self.api)
        if found is None or _is_unfinished(found):
            return self._restore_lost(found, request)
        if request.time is not None:
            moment = check_moment(request.time, found)
            self.progress(f"restoring {self.database} of {show_time(moment)}")
            wait_until_quiet(self.steps, self._stop(), "requests")
            copied = self._copy(
                DatabaseDocuments(self.api, self._path(self.database), moment, self.root)
            )
            return self._finish(copied, is_new_store=False)
        if not request.source:
            raise RestoreFailed(
                f"the database {self.database} exists, so nothing was changed: choose what to "
                "restore with --time MOMENT, or with --from and the name of a backup"
            )
        if is_export(request.source):
            return self._restore_export(request.source)
        backup = choose_backup(self.settings.names, self.api, request.source)
        self.progress(f"restoring the backup of {backup['snapshotTime']}")
        quiet_at = self._stop()
        temporary = self._restore_temporary(backup)
        wait_until_quiet(self.steps, quiet_at, "requests")
        copied = self._copy(DatabaseDocuments(self.api, self._path(temporary), root=self.root))
        return self._finish(copied, is_new_store=False, temporary=temporary)

    def _path(self, database: str) -> str:
        """Return the path of a database of the project."""
        return f"projects/{self.settings.project}/databases/{database}"

    def _restore_export(self, source: str) -> RestoreReport:
        """Restore the newest export at `source`, and copy the objects of the copied buckets.

        Raise RestoreFailed and GoogleError.
        """
        names = self.settings.names
        export = find_export(self.buckets, source)
        self.progress(f"restoring the export {export.url}")
        quiet_at = self._stop()
        temporary = self._import_temporary(export)
        wait_until_quiet(self.steps, quiet_at, "requests")
        targets = {"objects": names.objects, "checkpoints": names.checkpoints}
        copy_siblings(self.buckets, export.bucket, targets, self.steps)
        copied = self._copy(DatabaseDocuments(self.api, self._path(temporary), root=self.root))
        return self._finish(copied, is_new_store=False, temporary=temporary)

    def _restore_lost(
        self, found: Mapping[str, Any] | None, request: RestoreRequest
    ) -> RestoreReport:
        """Restore a backup of the lost database under the database's name, or continue a restore.

        Raise RestoreFailed and GoogleError.
        """
        if request.time is not None:
            raise RestoreFailed(
                f"--time is {show_time(request.time)}: the database {self.database} is lost, and "
                "with it its point-in-time recovery; without --time, the newest backup is restored"
            )
        if is_export(request.source):
            raise RestoreFailed(
                f"--from is {request.source}: the database {self.database} does not exist, and an "
                "export is copied into an existing database: create the database with `detcloud "
                f"deploy gcp --team {self.settings.team} --new-stores` first"
            )
        begun = _source_backup(found) if found else ""
        if begun and request.source and begun != request.source:
            raise RestoreFailed(
                f"--from is {request.source}: the database {self.database} is being restored from "
                f"{begun}; finish with this backup first"
            )
        quiet_at = self._stop()
        if not found:
            backup = choose_backup(self.settings.names, self.api, request.source)
            self.progress(f"restoring the backup of {backup['snapshotTime']}")
        with self.steps.step(f"restoring the database {self.database}"):
            operation = "" if found else self._start(backup, self.database)
            self._wait(self.database, operation)
        with self.steps.step("deleting the triggers of the lost database"):
            for trigger in TRIGGERS:
                self._delete(trigger_url(self.settings.names, trigger))
        wait_until_quiet(self.steps, quiet_at, "requests")
        report = self._finish(NOTHING_COPIED, is_new_store=True)
        self._set_up()
        return report

    def _stop(self) -> float:
        """Stop all functions, and return the time of the clock after which no function runs."""
        return self.clock.seconds() + stop_functions(self.settings, self.api, self.progress)

    def _restore_temporary(self, backup: Mapping[str, Any]) -> str:
        """Restore a backup into the temporary database, and return the database's name.

        A restore that an earlier call started is continued.
        """
        name = temporary_database(self.database, backup["name"])
        with self.steps.step(f"restoring into the temporary database {name}"):
            has_begun = read_database(self.settings.names, self.api, name) is not None
            self._wait(name, "" if has_begun else self._start(backup, name))
        return name

    def _import_temporary(self, export: StateExport) -> str:
        """Import an export into the temporary database, and return the database's name.

        An import that an earlier call started is continued.
        """
        names = self.settings.names
        name = temporary_database(self.database, export.url)
        with self.steps.step(f"importing into the temporary database {name}"):
            if read_database(names, self.api, name) is None:
                key = self.settings.kms_key
                self._wait(name, create_database(names, self.api, name, key))
            self._wait(name, "")
            operations = self.api.call("GET", f"{database_url(names, name)}/operations")
            if export.url not in imported_urls(operations):
                self._wait(name, import_export(names, self.api, export, name))
        return name

    def _start(self, backup: Mapping[str, Any], database: str) -> str:
        """Start the restore of a backup, and return Google's operation."""
        key = self.settings.kms_key or ""
        return restore_backup(self.settings.names, self.api, backup, database, key)

    def _wait(self, database: str, operation: str) -> None:
        """Wait until a database has been restored.

        Without `operation`, wait for the operations that an earlier call started.
        """
        url = f"{database_url(self.settings.names, database)}/operations"
        pending = [operation] if operation else self._pending(url)
        for name in pending:
            text = f"Firestore has been restoring {database}"
            wait_for_operation(self.api, name, self.clock, self.progress, text)

    def _pending(self, url: str) -> list[str]:
        """Return the names of the operations at a URL that have not ended."""
        listed = self.api.call("GET", url).get("operations", ())
        return [operation["name"] for operation in listed if not operation.get("done")]

    def _copy(self, source: DatabaseDocuments) -> CopyReport:
        """Make the cluster's database equal to `source`, and keep the used ids."""
        with self.steps.step(f"copying the differences into the database {self.database}"):
            path = self._path(self.database)
            target = DatabaseDocuments(self.api, path, root=self.root)
            open_table = partial(self.open_table, self.database)
            copied = copy_state(source.read(), target, open_table, counter_value)
        self.progress(copy_text(copied))
        return copied

    def _finish(
        self, copied: CopyReport, *, is_new_store: bool, temporary: str = ""
    ) -> RestoreReport:
        """Begin a new incarnation, remove the temporary database and start the functions."""
        with (
            self.steps.step("beginning a new incarnation"),
            self.open_table(self.database) as table,
        ):
            restarted = restart_state(table, is_new_store=is_new_store, progress=self.progress)
            self._restore_files(table)
        if temporary:
            # Before the start: a later call would copy the temporary database again.
            with self.steps.step(f"deleting the temporary database {temporary}"):
                self._delete(database_url(self.settings.names, temporary))
                while read_database(self.settings.names, self.api, temporary) is not None:
                    self.clock.sleep(LOOK_SECONDS)
        with self.steps.step("starting the functions"):
            start_functions(self.settings, self.api, self.progress)
        return restore_report(copied, restarted, is_new_store=is_new_store)

    def _restore_files(self, table: StateTable) -> None:
        """Restore the files of the checkpoints that the state names.

        A refusal by Google is a warning, because the state is whole without the files.
        """
        try:
            restore_named_files(self.buckets, bucket_names(self.settings), table, self.steps)
        except GoogleError as error:
            self.progress(f"warning: the files of checkpoints were not all checked: {error}")

    def _set_up(self) -> None:
        """Set the recovery and the protection, which also marks the restore as finished."""
        state = "ENABLED" if self.settings.protect else "DISABLED"
        body = {
            "pointInTimeRecoveryEnablement": _RECOVERS,
            "deleteProtectionState": f"DELETE_PROTECTION_{state}",
        }
        url = f"{database_url(self.settings.names)}?updateMask={','.join(body)}"
        self.api.call("PATCH", url, body)

    def _delete(self, url: str) -> None:
        """Delete the resource at a URL; do nothing for a missing resource."""
        try:
            self.api.call("DELETE", url)
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise


def _open_database(project: str, name: str) -> AbstractContextManager[StateTable]:
    """Open a database of a project with the environment's credentials."""
    return closing(FirestoreTable(create_client(project, name)))


def _source_backup(database: Mapping[str, Any]) -> str:
    """Return the name of the backup that a database was restored from; "" for any other."""
    return str(database.get("sourceInfo", {}).get("backup", {}).get("backup", ""))


def _is_unfinished(database: Mapping[str, Any]) -> bool:
    """Return whether a restore from a backup has not finished."""
    recovers = database.get("pointInTimeRecoveryEnablement") == _RECOVERS
    return bool(_source_backup(database)) and not recovers
