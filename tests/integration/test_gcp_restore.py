"""The restore of a cluster's state on Google Cloud, over Firestore's emulator.

`tests/emulators/google_databases.py` models what the emulator lacks: history, backups, databases.
"""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
from infra.gcp.state_restore import restore, restore_lost_objects
from infra.gcp.stores import read_stores
from infra.restoration import (
    FilesReport,
    ObjectsReport,
    RestoreFailed,
    RestoreReport,
    RestoreRequest,
)
from infra.stack_program import Store
from lambdas.gcp.function_names import FUNCTIONS
from tests.emulators.firestore import Firestore
from tests.emulators.google_databases import PROJECT, GoogleDatabases, ProcessEnd
from tests.engine_timing import UNHURRIED
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of

COUNTER = Key("counters", "experiment")
OLD = {"a": b"old", "b": b"old", "c": b"old"}
TRIGGERS = {"detcloud-vision-mail", "detcloud-vision-intents"}
# A whole minute, of which Firestore keeps a version.
MOMENT = (datetime.now(UTC) - timedelta(hours=2)).replace(second=0, microsecond=0)


class Project:
    """A deployed team whose database has rows, and Google as its deployer sees it.

    `google`: the project, which several teams may share. `more`: further settings.
    """

    def __init__(
        self,
        firestore: Firestore,
        google: GoogleDatabases | None = None,
        team: str = "vision",
        **more: str,
    ) -> None:
        self.firestore = firestore
        self.google = google or GoogleDatabases(firestore)
        self.lines: list[str] = []
        texts = {
            "project": PROJECT,
            "projectNumber": "123456789012",
            "region": "us-central1",
            "clusterConfig": "pools.yaml",
            "adminSha256": "a" * 64,
            **more,
        }
        self.settings: Settings = parse_settings(team, texts)
        self.deploy()
        names, copies = self.settings.names, self.settings.copies
        copied = [names.state_copy, *map(names.copy, copies.buckets)] if copies else []
        self.google.buckets.create(names.objects)
        for bucket in (names.checkpoints, *copied):
            self.google.buckets.create(bucket, keeps=True)

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

    def restore_objects(self, moment: datetime | None = None) -> ObjectsReport:
        """Restore lost objects as the command does."""
        return restore_lost_objects(
            self.settings,
            self.google,
            moment,
            self.lines.append,
            lambda name: nullcontext(self.open_table(name)),
        )

    def transfer(self) -> None:
        """Copy the buckets into the other region, as the transfers do."""
        names = self.settings.names
        for name, bucket in (("objects", names.objects), ("checkpoints", names.checkpoints)):
            self.google.buckets.transfer(bucket, names.copy(name))

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


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.nightly) for how in ("moment", "backup")), "lost"]
)
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


COPIES = '{"region": "europe-west4"}'
# The records of CollectionCluster name a file of 8 bytes.
WEIGHTS = b"12345678"


def add_checkpoints(project: Project, folder: Path) -> list[str]:
    """Add an experiment with two checkpoints, and return their folders."""
    cluster = CollectionCluster(folder, table=project.table)
    cluster.start_experiment(1)
    folders = []
    for steps in (10, 20):
        cluster.add(1, steps)
        folders.append(f"1/1/1/{uuid_of(1, steps)}")
        for name, content in (("weights", WEIGHTS), ("manifest.json", b"{}")):
            bucket = project.settings.names.checkpoints
            project.google.buckets.write(bucket, f"{folders[-1]}/{name}", content)
    return folders


def test_deleted_files_come_back_on_gcp(project: Project, tmp_path: Path) -> None:
    folders, bucket = add_checkpoints(project, tmp_path), project.settings.names.checkpoints
    before = project.google.buckets.live(bucket)
    for name in before:
        project.google.buckets.delete(bucket, name)
    assert project.restore_objects().checkpoints == FilesReport(0, tuple(folders), 4, ())
    assert project.google.buckets.live(bucket) == before


def test_lost_bucket_without_copies_names_the_lost_checkpoints_on_gcp(
    project: Project, tmp_path: Path
) -> None:
    folders, bucket = add_checkpoints(project, tmp_path), project.settings.names.checkpoints
    del project.google.buckets.generations[bucket]
    with pytest.raises(RestoreFailed, match=r"-checkpoints-.* does not exist: create the bucket"):
        project.restore_objects()
    project.google.buckets.create(bucket)
    assert project.restore_objects().checkpoints == FilesReport(0, (), 0, tuple(folders))


def test_lost_bucket_comes_back_from_the_copy_on_gcp(firestore: Firestore, tmp_path: Path) -> None:
    """Also if a transfer from the new, empty bucket has deleted the objects of the copy."""
    project = Project(firestore, copies=COPIES)
    folders, names = add_checkpoints(project, tmp_path), project.settings.names
    project.google.buckets.write(names.objects, "model-code/1", b"code")
    before = project.google.buckets.live(names.checkpoints)
    project.transfer()
    moment = project.google.buckets.now
    for bucket in (names.objects, names.checkpoints):
        del project.google.buckets.generations[bucket]
        project.google.buckets.create(bucket, keeps=True)
    project.transfer()
    report = project.restore_objects(moment)
    assert report == ObjectsReport(FilesReport(0, tuple(folders), 4, ()), 1)
    assert project.google.buckets.live(names.checkpoints) == before
    assert project.google.buckets.live(names.objects) == {"model-code/1": b"code"}


def lose_region(firestore: Firestore, folder: Path) -> tuple[Project, Project, str]:
    """Return the team of a lost region, a new team in the region of its copies, and the export."""
    first = Project(firestore, copies=COPIES)
    first.fill()
    add_checkpoints(first, folder)
    names = first.settings.names
    first.google.buckets.write(names.objects, "model-code/1", b"code")
    first.transfer()
    first.google.make_export(first.name, names.state_copy, "20261120T120000Z")
    first.put(Key("data", "a"), b"newer")
    export = first.google.make_export(first.name, names.state_copy, "20261121T120000Z")
    # An export that Firestore still writes has no metadata yet.
    first.google.buckets.write(names.state_copy, "20261122T120000Z/output-0", b"-")
    second = Project(firestore, first.google, "rescue", region="europe-west4")
    second.put(Key("data", "z"), b"of the empty cluster")
    first.lose_database()
    return first, second, export


def test_copies_in_another_region_start_a_cluster_there_on_gcp(
    firestore: Firestore, tmp_path: Path
) -> None:
    first, second, _ = lose_region(firestore, tmp_path)
    report = second.restore(RestoreRequest(source=f"gs://{first.settings.names.state_copy}"))
    assert second.data() == {**OLD, "a": b"newer"}
    assert (report.is_new_store, read_incarnation(second.table, "")) == (False, report.incarnation)
    assert read_next_ids(second.table)["experiment"] >= 7 + SKIPPED_IDS["experiment"]
    own = second.settings.names
    assert second.google.buckets.live(own.objects) == {"model-code/1": b"code"}
    assert len(second.google.buckets.live(own.checkpoints)) == 4
    assert "2 checkpoints intact, 0 checkpoints restored (0 files), 0 lost" in second.lines
    assert list(second.google.databases) == [second.name]
    assert not any(second.stopped_functions())


def test_restore_of_an_export_continues_after_an_interruption_at_each_change(
    firestore: Firestore, tmp_path: Path
) -> None:
    _, second, export = lose_region(firestore, tmp_path)
    interrupted = 0
    while True:
        second.put(Key("data", "z"), b"of the empty cluster")
        second.google.changes_left = interrupted
        try:
            second.restore(RestoreRequest(source=export))
            break
        except ProcessEnd:
            second.google.changes_left = None
        second.restore(RestoreRequest(source=export))
        assert second.data() == {**OLD, "a": b"newer"}
        assert list(second.google.databases) == [second.name]
        interrupted += 1
    assert interrupted > 10


def test_refuses_exports_that_cannot_be_restored(firestore: Firestore) -> None:
    project = Project(firestore, copies=COPIES)
    copy = project.settings.names.state_copy
    for source, message in (
        ("gs://none", "the bucket none does not exist"),
        (f"gs://{copy}", "expected a complete export of Firestore"),
    ):
        with pytest.raises(RestoreFailed, match=message):
            project.restore(RestoreRequest(source=source))
        assert project.google.changes == 0
    project.lose_database()
    with pytest.raises(RestoreFailed, match="an export is copied into an existing database"):
        project.restore(RestoreRequest(source=f"gs://{copy}"))
