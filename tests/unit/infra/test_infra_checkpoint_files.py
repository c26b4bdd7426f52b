"""The restore of checkpoint files that the state names."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.actors.trial.state import TrialState
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import PARTS
from control_plane.state.table import Expect, Key, Put
from infra.bucket_objects import NoBucket, copy_lost
from infra.checkpoint_files import list_own_checkpoints, restore_event_files, restore_files
from infra.gcp.object_copies import GcsBuckets
from infra.restoration import FilesReport, ObjectsReport, Steps
from infra.restored_objects import StackBuckets, restore_objects
from tests.emulators.google_buckets import GoogleBuckets
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster, uuid_of

BUCKET, COPY, OBJECTS = "checkpoints", "checkpoints-copy", "objects"
# The records of the cluster name a file of 8 bytes.
WEIGHTS = b"12345678"


class Bench:
    """A cluster with the checkpoints of steps 10 and 20 of trial 1, whose files are in a bucket."""

    def __init__(self, folder: Path) -> None:
        self.cluster = CollectionCluster(folder)
        self.cluster.start_experiment(1)
        self.google = GoogleBuckets()
        self.google.create(BUCKET, keeps=True)
        for steps in (10, 20):
            self.cluster.add(1, steps)
            self.write(steps)
        self.google.create(COPY, keeps=True)
        self.google.transfer(BUCKET, COPY)

    def folder(self, steps: int) -> str:
        return f"1/1/1/{uuid_of(1, steps)}"

    def write(self, steps: int) -> None:
        self.google.write(BUCKET, f"{self.folder(steps)}/weights", WEIGHTS)
        self.google.write(BUCKET, f"{self.folder(steps)}/manifest.json", b"{}")

    def delete(self, steps: int) -> None:
        for name in ("weights", "manifest.json"):
            self.google.delete(BUCKET, f"{self.folder(steps)}/{name}")

    def files(self) -> dict[str, bytes]:
        return self.google.live(BUCKET)

    def mark(self, steps: int, cause: str) -> None:
        """Mark a checkpoint as damaged, as after the report of a run."""
        record = replace(self.record(steps), state=CheckpointState.DAMAGED, damage=cause)
        address, name = addresses.trial(1), CHECKPOINT_PARTS + uuid_of(1, steps)
        row = self.cluster.table.get(Key(address, PARTS + name))
        assert row is not None
        body = actor_type_at(address).encode_part(name, record)
        self.cluster.table.commit((Put(row.key, row.revision, body, Expect.ANYTHING),))

    def record(self, steps: int) -> CheckpointRecord:
        found = self.cluster.engine.read_part(
            addresses.trial(1), CHECKPOINT_PARTS + uuid_of(1, steps)
        )
        assert isinstance(found, CheckpointRecord)
        return found

    def restore_objects(self, lines: list[str], copy: str = COPY) -> ObjectsReport:
        """Restore lost objects as the command does."""
        self.google.create(OBJECTS)
        copies = {"checkpoints": copy} if copy else {}
        names = StackBuckets(OBJECTS, BUCKET, copies)
        buckets = GcsBuckets(self.google)
        return restore_objects(buckets, names, self.cluster.table, None, Steps(lines.append))

    def restore(self, copy: str = COPY, moment: datetime | None = None) -> FilesReport:
        records = list_own_checkpoints(self.cluster.engine)
        return restore_files(GcsBuckets(self.google), records, BUCKET, copy, moment)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_deleted_files_come_back_from_versions(bench: Bench) -> None:
    before = bench.files()
    bench.delete(10)
    report = bench.restore(copy="")
    assert report == FilesReport(1, (bench.folder(10),), 2, ())
    assert bench.files() == before
    # A repeated restore changes nothing.
    assert bench.restore(copy="") == FilesReport(2, (), 0, ())


def test_damage_by_missing_files_is_withdrawn_when_the_files_are_back(bench: Bench) -> None:
    """A run looked for its files in the bucket before the objects were restored."""
    bench.delete(20)
    bench.mark(20, f"the store has no manifest.json in {bench.folder(20)}")
    # Nobody has read this file again.
    bench.mark(10, "weights is not the file that was stored: 8 bytes")
    lines: list[str] = []
    report = bench.restore_objects(lines)
    assert report.checkpoints == FilesReport(1, (bench.folder(20),), 2, ())
    assert bench.record(20).state is CheckpointState.COMPLETED
    assert bench.record(10).state is CheckpointState.DAMAGED
    assert "1 checkpoint no longer marked as damaged" in lines
    # The trial's next run starts from the checkpoint.
    state = bench.cluster.engine.read_state(addresses.trial(1))
    assert isinstance(state, TrialState)
    assert state.checkpoint == bench.record(20).checkpoint
    bench.restore_objects(lines)
    assert len([line for line in lines if "no longer" in line]) == 1


def test_damage_stays_while_files_are_missing(bench: Bench) -> None:
    bench.google.create(BUCKET)
    bench.mark(20, "the store has no manifest.json")
    lines: list[str] = []
    bench.restore_objects(lines, copy="")
    assert bench.record(20).state is CheckpointState.DAMAGED
    assert not any("no longer" in line for line in lines)


def test_replaced_file_gets_its_first_content_again(bench: Bench) -> None:
    name = f"{bench.folder(10)}/weights"
    bench.google.write(BUCKET, name, b"short")
    assert bench.restore(copy="").files == 1
    assert bench.files()[name] == WEIGHTS
    # The content of a moment between the restore and a second replacement.
    bench.google.write(BUCKET, name, b"")
    moment = bench.google.now - timedelta(seconds=1.5)
    assert bench.restore(copy="", moment=moment).files == 1
    assert bench.files()[name] == WEIGHTS


def test_lost_bucket_comes_back_from_the_copy(bench: Bench) -> None:
    before = bench.files()
    bench.google.create(BUCKET)
    assert bench.restore() == FilesReport(0, (bench.folder(10), bench.folder(20)), 4, ())
    assert bench.files() == before


def test_emptied_copy_still_has_versions(bench: Bench) -> None:
    """A transfer from a bucket that was created again, empty, deletes all objects of the copy."""
    before = bench.files()
    bench.google.create(BUCKET)
    bench.google.transfer(BUCKET, COPY)
    assert bench.google.live(COPY) == {}
    assert bench.restore().lost == ()
    assert bench.files() == before


def test_checkpoints_without_versions_and_copies_are_named(bench: Bench) -> None:
    bench.google.create(BUCKET)
    bench.write(20)
    assert bench.restore(copy="") == FilesReport(1, (), 0, (bench.folder(10),))
    # A copy that does not exist is no copy.
    assert bench.restore(copy="none").lost == (bench.folder(10),)


def test_files_that_the_cluster_deleted_stay_deleted(bench: Bench) -> None:
    for steps, state in ((10, CheckpointState.DELETED), (20, CheckpointState.DELETING)):
        bench.cluster.add(1, steps, state=state)
        bench.delete(steps)
    assert bench.restore() == FilesReport(0, (), 0, ())
    assert bench.files() == {}


def test_files_that_a_user_deleted_stay_deleted(bench: Bench) -> None:
    address, name = addresses.trial(1), CHECKPOINT_PARTS + uuid_of(1, 10)
    row = bench.cluster.table.get(Key(address, PARTS + name))
    assert row is not None
    kind = actor_type_at(address)
    stored = kind.decode_part(name, row.body)
    assert isinstance(stored, CheckpointRecord)
    record = replace(
        stored,
        state=CheckpointState.PARTIALLY_DELETED,
        deleted_patterns=("optimizer",),
    )
    put = Put(row.key, row.revision, kind.encode_part(name, record), Expect.ANYTHING)
    bench.cluster.table.commit((put,))
    bench.google.write(BUCKET, f"{bench.folder(10)}/optimizer", b"large")
    bench.google.delete(BUCKET, f"{bench.folder(10)}/optimizer")
    bench.delete(10)
    assert bench.restore().files == 2
    assert f"{bench.folder(10)}/optimizer" not in bench.files()


def test_other_stores_of_experiments_are_left_out(bench: Bench) -> None:
    address = addresses.experiment(1)
    definition = bench.cluster.engine.read_part(address, "definition")
    assert isinstance(definition, Definition)
    config = definition.config.replace('"checkpoint_storage":{', '"checkpoint_storage":{', 1)
    stored = config.replace('"type":null', '"type":"s3","bucket":"own"', 1)
    assert stored != config
    kind = actor_type_at(address)
    row = bench.cluster.table.get(Key(address, f"{PARTS}definition"))
    assert row is not None
    body = kind.encode_part("definition", replace(definition, config=stored))
    bench.cluster.table.commit((Put(row.key, row.revision, body, Expect.ANYTHING),))
    assert list(list_own_checkpoints(bench.cluster.engine)) == []


def test_deleted_event_files_of_undeleted_experiments_come_back(bench: Bench) -> None:
    own, foreign = "tensorboard/1/1/events", "tensorboard/2/9/events"
    for name, content in ((own, b"first"), (own, b"newer"), (foreign, b"of a deleted one")):
        bench.google.write(BUCKET, name, content)
    for name in (own, foreign):
        bench.google.delete(BUCKET, name)
    buckets, engine = GcsBuckets(bench.google), bench.cluster.engine
    assert restore_event_files(buckets, engine, BUCKET, "") == 1
    assert bench.files()[own] == b"newer"
    assert foreign not in bench.files()
    assert restore_event_files(buckets, engine, BUCKET, COPY) == 0


def test_missing_bucket_is_an_error(bench: Bench) -> None:
    del bench.google.generations[BUCKET]
    with pytest.raises(NoBucket, match=r"^checkpoints$"):
        bench.restore()


def test_objects_of_a_moment_come_back_from_versions() -> None:
    google = GoogleBuckets()
    google.create("objects", keeps=True)
    for name, content in (("a", b"1"), ("b", b"2" * 200)):
        google.write("objects", name, content)
    moment = google.now
    google.delete("objects", "b")
    google.write("objects", "c", b"3")
    google.delete("objects", "c")
    buckets = GcsBuckets(google)
    found = copy_lost(buckets, "objects", "objects", moment)
    assert found is not None
    assert (found.copied, found.unchanged) == (1, 1)
    assert google.live("objects") == {"a": b"1", "b": b"2" * 200}
    assert copy_lost(buckets, "none", "objects", None) is None
    early = datetime(2026, 1, 1, tzinfo=UTC)
    assert copy_lost(buckets, "objects", "objects", early) is not None
