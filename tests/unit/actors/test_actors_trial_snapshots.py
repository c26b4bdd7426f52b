"""Snapshots of a notebook's folder: only the newest is kept, and a lost machine names it."""

from dataclasses import replace

import pytest

from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    CheckpointReported,
    SlotsAssigned,
    TrialDeleted,
)
from control_plane.actors.pins import PINS, Pin, encode_pin
from control_plane.actors.records import JobKind, Place, Snapshot, SnapshotSettings
from control_plane.actors.step import ObservedRow
from control_plane.actors.trial.checkpoints import CHECKPOINTS, CheckpointRecord, CheckpointState
from control_plane.searchers.method import ENDLESS
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created, trial_settings

SETTINGS = SnapshotSettings(JobKind.NOTEBOOK, 300_000, 1024**3)


def snapshot_at(number: int) -> CheckpointReported:
    return replace(checkpoint_reported(number), metadata={"kind": "folder"})


def uuid(number: int) -> str:
    return snapshot_at(number).checkpoint.uuid


def notebook(settings: SnapshotSettings | None = SETTINGS) -> ActorHarness:
    """Create a running notebook, trial 4 of experiment 1."""
    actor = ActorHarness("trial#4")
    shared = replace(trial_settings(max_restarts=0, slots=1), runs_once=True, snapshots=settings)
    actor.deliver(trial_created(length=ENDLESS, of=shared))
    actor.deliver(SlotsAssigned(1, (Place("a", (0,)),)))
    return actor


def state_of(actor: ActorHarness, number: int) -> CheckpointState | None:
    record = actor.part(f"checkpoint/{uuid(number)}")
    assert record is None or isinstance(record, CheckpointRecord)
    return None if record is None else record.state


def row(actor: ActorHarness, partition: str, sort: str) -> bytes | None:
    return actor.rows.get((partition, sort), ObservedRow(0, b"")).body or None


def test_new_snapshot_requests_the_removal_of_the_one_before() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1), snapshot_at(2))
    assert state_of(actor, 1) is CheckpointState.DELETING
    assert state_of(actor, 2) is CheckpointState.COMPLETED
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(1))) == b"4"
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(2))) is None
    reported = snapshot_at(2)
    now_ms = actor.state.snapshot.saved_ms
    assert actor.state.snapshot == Snapshot(reported.checkpoint, reported.size_bytes, now_ms)
    # A notebook's training and its latest checkpoint are not touched.
    assert (actor.state.checkpoint, actor.state.steps) == (None, 0)


def test_removed_snapshot_leaves_no_row() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1), snapshot_at(2), CheckpointFilesDeleted((uuid(1),)))
    assert state_of(actor, 1) is None
    assert row(actor, CHECKPOINTS, uuid(1)) is None
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(1))) is None
    assert row(actor, CHECKPOINTS, uuid(2)) == b"4"


def test_repeated_report_changes_nothing() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1), snapshot_at(2))
    before = actor.state
    actor.deliver(snapshot_at(2), snapshot_at(1))
    assert actor.state == before
    assert state_of(actor, 1) is CheckpointState.DELETING
    assert state_of(actor, 2) is CheckpointState.COMPLETED


def test_late_snapshot_is_removed_and_the_newest_stays() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(2), snapshot_at(1))
    assert actor.state.snapshot.checkpoint.uuid == uuid(2)
    assert state_of(actor, 1) is CheckpointState.DELETING
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(1))) == b"4"


def test_repeated_report_of_a_removed_snapshot_is_removed_again() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1), snapshot_at(2), CheckpointFilesDeleted((uuid(1),)))
    actor.deliver(snapshot_at(1))
    assert actor.state.snapshot.checkpoint.uuid == uuid(2)
    actor.deliver(CheckpointFilesDeleted((uuid(1),)))
    assert state_of(actor, 1) is None


def test_snapshot_with_which_another_run_starts_stays() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1))
    actor.rows[PINS, uuid(1)] = ObservedRow(1, encode_pin(Pin(experiments=(9,))))
    actor.deliver(snapshot_at(2))
    assert state_of(actor, 1) is CheckpointState.COMPLETED
    assert actor.state.snapshot.checkpoint.uuid == uuid(2)
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(1))) is None


def test_checkpoint_of_another_trial_is_not_recorded() -> None:
    actor = notebook()
    actor.rows[CHECKPOINTS, uuid(1)] = ObservedRow(1, b"77")
    actor.deliver(snapshot_at(1))
    assert actor.state.snapshot is None
    assert state_of(actor, 1) is None


def test_checkpoints_of_the_users_own_code_stay() -> None:
    actor = notebook()
    actor.deliver(checkpoint_reported(10), snapshot_at(1), checkpoint_reported(20), snapshot_at(2))
    assert state_of(actor, 10) is state_of(actor, 20) is CheckpointState.COMPLETED
    assert actor.state.checkpoint.uuid == uuid(20)
    assert actor.state.snapshot.checkpoint.uuid == uuid(2)


def test_metadata_of_an_experiment_make_no_snapshot() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(), SlotsAssigned(1, (Place("a", (0, 1)),)))
    actor.deliver(snapshot_at(10), snapshot_at(20))
    assert state_of(actor, 10) is CheckpointState.COMPLETED
    assert actor.state.snapshot is None


def test_newest_snapshot_of_a_running_notebook_cannot_be_deleted() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1))
    assert actor.deliver(CheckpointDeletionRequested((uuid(1),))) == ()
    assert not actor.state.snapshot.is_deleted


def test_deleted_snapshot_of_an_ended_notebook_is_not_offered() -> None:
    actor = notebook()
    actor.deliver(snapshot_at(1), AllocationExited(1, "completed", 0))
    assert actor.deliver(CheckpointDeletionRequested((uuid(1),))) == (uuid(1),)
    assert actor.state.snapshot.is_deleted
    actor.deliver(TrialDeleted())
    assert actor.state.snapshot is None


AGAIN = "start it again with its files: detcloud notebook start --from 1"


@pytest.mark.parametrize(
    ("settings", "is_saved", "advice"),
    [
        (SETTINGS, True, AGAIN),
        (SETTINGS, False, "it runs once, so start another one"),
        (replace(SETTINGS, is_restored=True), False, AGAIN),
        (None, False, "it runs once, so start another one"),
    ],
)
def test_message_about_a_lost_machine_names_the_way_back(
    settings: SnapshotSettings | None, is_saved: bool, advice: str
) -> None:
    actor = notebook(settings)
    if is_saved:
        actor.deliver(snapshot_at(1))
    actor.deliver(AllocationLost(1, "no word from agent a for 60 s"))
    assert actor.state.message == f"lost: no word from agent a for 60 s; {advice}"
