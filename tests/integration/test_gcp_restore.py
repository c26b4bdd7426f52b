"""The restore of a cluster's state on Google Cloud, over Firestore's emulator.

`tests/emulators/google_databases.py` models what the emulator lacks: history, backups, databases.
"""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from control_plane.actors.messages.pool import PoolConfigured
from control_plane.engine.engine import Engine
from control_plane.gcp.state_table import FirestoreTable
from control_plane.restoration.incarnation import read_incarnation
from control_plane.restoration.restart import SKIPPED_IDS, read_next_ids
from control_plane.state.table import Delete, Expect, Key, Put
from infra.drain_clock import Clock
from infra.gcp.document_store import DatabaseDocuments
from infra.gcp.settings import Settings, parse_settings
from infra.gcp.state_restore import restore
from infra.gcp.stores import read_stores
from infra.restoration import RestoreFailed, RestoreReport, RestoreRequest
from infra.stack_program import Store
from lambdas.gcp.function_names import FUNCTIONS
from tests.emulators.firestore import Firestore
from tests.emulators.google_databases import PROJECT, GoogleDatabases, ProcessEnd
from tests.engine_timing import UNHURRIED

COUNTER = Key("counters", "experiment")
OLD = {"a": b"old", "b": b"old", "c": b"old"}
TRIGGERS = {"detcloud-vision-mail", "detcloud-vision-intents"}
# A whole minute, of which Firestore keeps a version.
MOMENT = (datetime.now(UTC) - timedelta(hours=2)).replace(second=0, microsecond=0)


class Project:
    """A deployed team whose database has rows, and Google as its deployer sees it."""

    def __init__(self, firestore: Firestore) -> None:
        self.firestore = firestore
        self.google = GoogleDatabases(firestore)
        self.lines: list[str] = []
        texts = {
            "project": PROJECT,
            "projectNumber": "123456789012",
            "region": "us-central1",
            "clusterConfig": "pools.yaml",
            "adminSha256": "a" * 64,
        }
        self.settings: Settings = parse_settings("vision", texts)
        self.deploy()

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.settings.names.database

    def deploy(self) -> None:
        """Create an empty database, the triggers and the functions, as a deployment does."""
        early = (MOMENT - timedelta(days=1)).isoformat()
        self.google.real[self.name] = self.firestore.new_database()
        self.google.databases[self.name] = {
            "pointInTimeRecoveryEnablement": "POINT_IN_TIME_RECOVERY_ENABLED",
            "earliestVersionTime": early,
        }
        self.google.triggers |= TRIGGERS
        for function in FUNCTIONS:
            self.google.scaling[self.settings.names.part(function)] = {}

    def open_table(self, name: str) -> FirestoreTable:
        client = self.firestore.client(self.google.real.get(name, name), PROJECT)
        return FirestoreTable(client)

    @property
    def table(self) -> FirestoreTable:
        """The state table."""
        return self.open_table(self.name)

    def restore(self, request: RestoreRequest) -> RestoreReport:
        """Restore as the command does, under a clock that does not wait."""
        self.google.changes = 0
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        return restore(
            self.settings,
            self.google,
            request,
            self.lines.append,
            Clock(lambda: now[0], sleep),
            lambda name: nullcontext(self.open_table(name)),
            root=f"{self.firestore.url}/v1",
        )

    def data(self) -> dict[str, bytes]:
        """Return the bodies of the rows of the partition `data`."""
        rows = self.table.query("data", " ", "~").rows
        return {row.key.sort: row.body for row in rows}

    def put(self, key: Key, body: bytes) -> None:
        self.table.commit((Put(key, 1, body, Expect.ANYTHING),))

    def fill(self) -> None:
        """Write the state that the tests restore: `a` to `c`, and 7 as the next id."""
        for sort in "abc":
            self.put(Key("data", sort), b"old")
        self.put(COUNTER, b"7")

    def change(self) -> None:
        """Change the state: a row changes, one ends, one is new, and ids 7 to 9 are used."""
        self.put(Key("data", "a"), b"new")
        self.table.commit((Delete(Key("data", "b"), Expect.ANYTHING),))
        self.put(Key("data", "d"), b"new")
        self.put(COUNTER, b"10")

    def lose_database(self) -> None:
        del self.google.databases[self.name], self.google.real[self.name]

    def store(self) -> Store:
        """Return the database as a deployment sees it."""
        stores = read_stores(self.settings.names, self.google)
        assert isinstance(stores, list), stores
        return stores[0]

    def stopped_functions(self) -> list[bool]:
        """Return for each function whether the function is stopped."""
        names = map(self.settings.names.part, FUNCTIONS)
        return [self.google.scaling[name].get("scalingMode") == "MANUAL" for name in names]


@pytest.fixture
def project(firestore: Firestore) -> Project:
    made = Project(firestore)
    Engine(made.table, lambda: 1, UNHURRIED).execute_command(
        "pool#default", PoolConfigured("default")
    )
    made.fill()
    return made


def remember_moment(project: Project) -> None:
    """Let the database's recovery have the present state as that of MOMENT."""
    text = MOMENT.strftime("%Y-%m-%dT%H:%M:%SZ")
    project.google.moments[text] = project.google.copy(project.name)


def test_moment_is_restored_in_the_same_database(project: Project) -> None:
    remember_moment(project)
    project.change()
    # The seconds are cut off: Firestore keeps whole minutes.
    report = project.restore(RestoreRequest(MOMENT + timedelta(seconds=30)))
    assert project.data() == OLD
    assert (report.written, report.deleted, report.is_new_store) == (2, 1, False)
    assert read_incarnation(project.table, "") == report.incarnation
    # No id of the lost state is used again, and none is skipped.
    assert read_next_ids(project.table)["experiment"] == 10
    assert not any(project.stopped_functions())
    assert project.google.triggers == TRIGGERS


def test_rows_of_all_collections_are_copied(project: Project) -> None:
    """Mail and intents are in collections of their own, which the triggers watch."""
    path = f"projects/{PROJECT}/databases/{project.google.real[project.name]}"
    documents = DatabaseDocuments(project.google, path, root=f"{project.firestore.url}/v1")
    project.put(Key("experiment#1", "M000000000001"), b"mail")
    kept = {stored.key for stored in documents.read()}
    assert {Key("experiment#1", "M000000000001"), COUNTER, Key("data", "a")} <= kept


def test_backup_is_restored_through_a_temporary_database(project: Project) -> None:
    backup = project.google.make_backup(project.name, "monday")
    project.change()
    report = project.restore(RestoreRequest(source=backup))
    assert project.data() == OLD
    assert (report.written, report.deleted) == (2, 1)
    assert list(project.google.databases) == [project.name]


def test_lost_database_is_restored_from_the_newest_backup(project: Project) -> None:
    project.google.make_backup(project.name, "monday")
    project.change()
    project.google.make_backup(project.name, "tuesday")
    project.lose_database()
    assert not project.store().exists
    report = project.restore(RestoreRequest())
    assert project.data() == {"a": b"new", "c": b"old", "d": b"new"}
    assert report.is_new_store
    assert read_next_ids(project.table)["experiment"] == 10 + SKIPPED_IDS["experiment"]
    database = project.google.databases[project.name]
    assert database["pointInTimeRecoveryEnablement"] == "POINT_IN_TIME_RECOVERY_ENABLED"
    assert database["deleteProtectionState"] == "DELETE_PROTECTION_ENABLED"
    # The next deployment creates the triggers again.
    assert project.store().trouble == (
        "detcloud-vision-mail and detcloud-vision-intents must be created again"
    )


@pytest.mark.parametrize("how", ["moment", "backup", "lost"])
def test_restore_continues_after_an_interruption_at_each_change(how: str, project: Project) -> None:
    """No function runs before the state is whole."""
    interrupted = 0
    while True:
        project.deploy()
        project.fill()
        remember_moment(project)
        backup = project.google.make_backup(project.name, f"of-{interrupted}")
        project.change()
        if how == "lost":
            project.lose_database()
        request = RestoreRequest(MOMENT) if how == "moment" else RestoreRequest(source=backup)
        project.google.changes_left = interrupted
        try:
            project.restore(request)
            break
        except ProcessEnd:
            project.google.changes_left = None
        stopped = project.stopped_functions()
        is_whole = project.name in project.google.databases and project.data() == OLD
        assert all(stopped) or interrupted < len(stopped) or is_whole
        project.restore(request)
        assert project.data() == OLD
        least = 7 + SKIPPED_IDS["experiment"] if how == "lost" else 10
        assert read_next_ids(project.table)["experiment"] >= least
        assert not any(project.stopped_functions())
        assert list(project.google.databases) == [project.name]
        interrupted += 1
    assert interrupted > 10


def test_refuses_requests_that_cannot_be_restored(project: Project) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for request, message in (
        (RestoreRequest(), "exists, so nothing was changed: choose what to restore"),
        (RestoreRequest(later), "expected a moment from .* to .*, which the recovery"),
        (RestoreRequest(source="projects/p/locations/l/backups/b"), "this backup does not exist"),
    ):
        with pytest.raises(RestoreFailed, match=message):
            project.restore(request)
        assert project.google.changes == 0
    project.lose_database()
    for request, message in (
        (RestoreRequest(MOMENT), "is lost, and with it its point-in-time recovery"),
        (RestoreRequest(), "is lost, and no backup of it exists"),
    ):
        with pytest.raises(RestoreFailed, match=message):
            project.restore(request)


def test_unfinished_restore_is_seen_by_a_deployment(project: Project) -> None:
    backup = project.google.make_backup(project.name, "monday")
    project.google.changes_left = len(FUNCTIONS)
    with pytest.raises(ProcessEnd):
        project.restore(RestoreRequest(source=backup))
    assert project.store().refusal == (
        "a restore of the state has stopped the functions and has not finished"
    )
