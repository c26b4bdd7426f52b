"""The deletion of a trial's checkpoints, and pins that prevent a deletion."""

import json

import pytest

from control_plane.actors.collection_rows import COLLECTIONS, removal_sort_key
from control_plane.actors.messages.trial import (
    AllocationExited,
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    CheckpointReported,
    SlotsAssigned,
    TrialDeleted,
    ValidationReported,
)
from control_plane.actors.pins import PINS, Pin, decode_pin, encode_pin
from control_plane.actors.records import Place
from control_plane.actors.step import ObservedRow
from control_plane.actors.trial.checkpoints import CheckpointRecord, CheckpointState
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created


def report_at(steps: int) -> CheckpointReported:
    return checkpoint_reported(steps)


def uuid(steps: int) -> str:
    return report_at(steps).checkpoint.uuid


def deletion_of(*steps: int, instead: int = 0) -> CheckpointDeletionRequested:
    return CheckpointDeletionRequested(
        tuple(uuid(step) for step in steps), uuid(instead) if instead else ""
    )


def state_of(actor: ActorHarness, steps: int) -> CheckpointState:
    record = actor.part(f"checkpoint/{uuid(steps)}")
    assert isinstance(record, CheckpointRecord)
    return record.state


def row(actor: ActorHarness, partition: str, sort: str) -> bytes | None:
    return actor.rows.get((partition, sort), ObservedRow(0, b"")).body or None


@pytest.fixture
def actor() -> ActorHarness:
    """Create a running trial with checkpoints at the batches 10, 20 and 30."""
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(), SlotsAssigned(1, (Place("a", (0, 1)),)))
    actor.deliver(*(report_at(steps) for steps in (10, 20, 30)))
    return actor


@pytest.fixture
def ended_trial(actor: ActorHarness) -> ActorHarness:
    actor.deliver(AllocationExited(1, "stop_requested"))
    assert actor.state.status.is_final
    return actor


def test_deleted_checkpoint_is_marked_and_removal_of_files_is_requested(
    actor: ActorHarness,
) -> None:
    assert actor.deliver(deletion_of(10, 20)) == (uuid(10), uuid(20))
    assert state_of(actor, 10) is state_of(actor, 20) is CheckpointState.DELETING
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(10))) == b"4"
    assert json.loads(row(actor, PINS, uuid(10)) or b"") == {"by": [], "gone": True}
    assert actor.state.checkpoint == report_at(30).checkpoint


def test_latest_checkpoint_of_an_open_trial_stays(actor: ActorHarness) -> None:
    assert actor.deliver(deletion_of(10, 30, instead=20)) == (uuid(10),)
    assert state_of(actor, 30) is CheckpointState.COMPLETED
    assert actor.state.checkpoint == report_at(30).checkpoint


def test_ended_trial_gets_an_older_latest_checkpoint(ended_trial: ActorHarness) -> None:
    assert ended_trial.deliver(deletion_of(30, instead=20)) == (uuid(30),)
    assert ended_trial.state.checkpoint == report_at(20).checkpoint
    ended_trial.deliver(deletion_of(20, instead=10))
    assert ended_trial.state.checkpoint == report_at(10).checkpoint
    ended_trial.deliver(deletion_of(10))
    assert ended_trial.state.checkpoint is None


@pytest.mark.parametrize("instead", [10, 40])
def test_incomplete_checkpoint_does_not_become_the_latest(
    ended_trial: ActorHarness, instead: int
) -> None:
    ended_trial.deliver(deletion_of(10))
    ended_trial.deliver(deletion_of(30, instead=instead))
    assert ended_trial.state.checkpoint is None


def test_pinned_checkpoint_stays(actor: ActorHarness) -> None:
    actor.rows[PINS, uuid(10)] = ObservedRow(3, encode_pin(Pin((7,))))
    assert actor.deliver(deletion_of(10, 20)) == (uuid(20),)
    assert state_of(actor, 10) is CheckpointState.COMPLETED
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(10))) is None
    actor.rows[PINS, uuid(10)] = ObservedRow(4, encode_pin(Pin()))
    assert actor.deliver(deletion_of(10)) == (uuid(10),)


def test_repeated_deletion_changes_no_state(actor: ActorHarness) -> None:
    actor.deliver(deletion_of(10))
    assert actor.deliver(deletion_of(10)) == (uuid(10),)
    assert actor.parts_written == []


def test_unknown_checkpoint_is_not_deleted(actor: ActorHarness) -> None:
    assert actor.deliver(deletion_of(99)) == ()


def test_removed_files_complete_the_deletion_and_remove_the_row(actor: ActorHarness) -> None:
    actor.deliver(deletion_of(10))
    actor.deliver(CheckpointFilesDeleted((uuid(10), uuid(20), uuid(99))))
    assert state_of(actor, 10) is CheckpointState.DELETED
    assert state_of(actor, 20) is CheckpointState.COMPLETED
    assert row(actor, COLLECTIONS, removal_sort_key(1, uuid(10))) is None
    assert actor.deliver(deletion_of(10)) == ()
    actor.deliver(CheckpointFilesDeleted((uuid(10),)))
    assert actor.parts_written == []


@pytest.mark.parametrize("files_are_gone", [False, True])
def test_report_does_not_restore_a_deleted_checkpoint(
    actor: ActorHarness, files_are_gone: bool
) -> None:
    actor.deliver(deletion_of(10))
    if files_are_gone:
        actor.deliver(CheckpointFilesDeleted((uuid(10),)))
    before = state_of(actor, 10)
    actor.deliver(report_at(10))
    assert state_of(actor, 10) is before


def test_validation_does_not_restore_a_deleted_checkpoint(ended_trial: ActorHarness) -> None:
    ended_trial.deliver(deletion_of(30))
    ended_trial.deliver(ValidationReported(1, 30, 0.5))
    assert state_of(ended_trial, 30) is CheckpointState.DELETING


def test_deleted_trial_ignores_deletion_requests(ended_trial: ActorHarness) -> None:
    ended_trial.deliver(TrialDeleted())
    assert ended_trial.deliver(deletion_of(10)) is None


def test_record_of_an_old_release_is_complete(actor: ActorHarness) -> None:
    name = f"checkpoint/{uuid(10)}"
    fields = json.loads(actor.parts[name])
    del fields["state"]
    actor.parts[name] = json.dumps(fields).encode()
    assert state_of(actor, 10) is CheckpointState.COMPLETED


def test_missing_row_has_no_pins() -> None:
    assert decode_pin(b"") == Pin()
    assert decode_pin(encode_pin(Pin((1, 2), is_deleted=True))) == Pin((1, 2), is_deleted=True)
