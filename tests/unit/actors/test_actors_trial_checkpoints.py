"""How a trial's checkpoints go, and what holds them."""

import json

import pytest

from control_plane.actors.records import Place
from control_plane.actors.step import RowSeen
from control_plane.actors.trial_checkpoints import (
    COLLECTIONS,
    PINS,
    CheckpointRecord,
    CheckpointState,
    Pin,
    read_pin,
    removal_sort,
    write_pin,
)
from control_plane.actors.trial_messages import (
    AllocationExited,
    CheckpointFilesDeleted,
    CheckpointReported,
    CheckpointsUnwanted,
    SlotsAssigned,
    TrialDeleted,
    ValidationReported,
)
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import checkpoint_reported, created


def reported(steps: int) -> CheckpointReported:
    return checkpoint_reported(steps)


def uuid(steps: int) -> str:
    return reported(steps).checkpoint.uuid


def unwanted(*steps: int, instead: int = 0) -> CheckpointsUnwanted:
    return CheckpointsUnwanted(
        tuple(uuid(step) for step in steps), uuid(instead) if instead else ""
    )


def state_of(desk: Desk, steps: int) -> CheckpointState:
    record = desk.part(f"checkpoint/{uuid(steps)}")
    assert isinstance(record, CheckpointRecord)
    return record.state


def row(desk: Desk, partition: str, sort: str) -> bytes | None:
    return desk.rows.get((partition, sort), RowSeen(0, b"")).body or None


@pytest.fixture
def desk() -> Desk:
    """A running trial with checkpoints at 10, 20 and 30."""
    desk = Desk("trial#4")
    desk.tell(created(), SlotsAssigned(1, (Place("a", (0, 1)),)))
    desk.tell(*(reported(steps) for steps in (10, 20, 30)))
    return desk


@pytest.fixture
def ended(desk: Desk) -> Desk:
    desk.tell(AllocationExited(1, "stop_requested"))
    assert desk.state.status.final
    return desk


def test_one_that_nothing_holds_is_condemned_and_says_where_its_files_are_removed(
    desk: Desk,
) -> None:
    assert desk.tell(unwanted(10, 20)) == (uuid(10), uuid(20))
    assert state_of(desk, 10) is state_of(desk, 20) is CheckpointState.DELETING
    assert row(desk, COLLECTIONS, removal_sort(1, uuid(10))) == b"4"
    assert json.loads(row(desk, PINS, uuid(10)) or b"") == {"by": [], "gone": True}
    assert desk.state.checkpoint == reported(30).checkpoint


def test_the_newest_of_a_trial_that_goes_on_stays(desk: Desk) -> None:
    assert desk.tell(unwanted(10, 30, instead=20)) == (uuid(10),)
    assert state_of(desk, 30) is CheckpointState.COMPLETED
    assert desk.state.checkpoint == reported(30).checkpoint


def test_a_trial_that_has_ended_would_go_on_from_what_is_left(ended: Desk) -> None:
    assert ended.tell(unwanted(30, instead=20)) == (uuid(30),)
    assert ended.state.checkpoint == reported(20).checkpoint
    ended.tell(unwanted(20, instead=10))
    assert ended.state.checkpoint == reported(10).checkpoint
    ended.tell(unwanted(10))
    assert ended.state.checkpoint is None


@pytest.mark.parametrize("instead", [10, 40])
def test_what_is_no_complete_checkpoint_is_not_gone_on_from(ended: Desk, instead: int) -> None:
    ended.tell(unwanted(10))
    ended.tell(unwanted(30, instead=instead))
    assert ended.state.checkpoint is None


def test_a_pinned_one_stays(desk: Desk) -> None:
    desk.rows[PINS, uuid(10)] = RowSeen(3, write_pin(Pin((7,))))
    assert desk.tell(unwanted(10, 20)) == (uuid(20),)
    assert state_of(desk, 10) is CheckpointState.COMPLETED
    assert row(desk, COLLECTIONS, removal_sort(1, uuid(10))) is None
    desk.rows[PINS, uuid(10)] = RowSeen(4, write_pin(Pin()))
    assert desk.tell(unwanted(10)) == (uuid(10),)


def test_condemned_twice_it_is_condemned_once(desk: Desk) -> None:
    desk.tell(unwanted(10))
    assert desk.tell(unwanted(10)) == (uuid(10),)
    assert desk.parts_written == []


def test_what_the_trial_never_made_is_none_of_its_own(desk: Desk) -> None:
    assert desk.tell(unwanted(99)) == ()


def test_when_its_files_are_gone_it_is_deleted_and_its_row_taken_away(desk: Desk) -> None:
    desk.tell(unwanted(10))
    desk.tell(CheckpointFilesDeleted((uuid(10), uuid(20), uuid(99))))
    assert state_of(desk, 10) is CheckpointState.DELETED
    assert state_of(desk, 20) is CheckpointState.COMPLETED
    assert row(desk, COLLECTIONS, removal_sort(1, uuid(10))) is None
    assert desk.tell(unwanted(10)) == ()
    desk.tell(CheckpointFilesDeleted((uuid(10),)))
    assert desk.parts_written == []


@pytest.mark.parametrize("files_are_gone", [False, True])
def test_a_report_of_one_that_was_deleted_brings_it_not_back(
    desk: Desk, files_are_gone: bool
) -> None:
    desk.tell(unwanted(10))
    if files_are_gone:
        desk.tell(CheckpointFilesDeleted((uuid(10),)))
    before = state_of(desk, 10)
    desk.tell(reported(10))
    assert state_of(desk, 10) is before


def test_a_validation_at_its_step_leaves_a_deleted_one_deleted(ended: Desk) -> None:
    ended.tell(unwanted(30))
    ended.tell(ValidationReported(1, 30, 0.5))
    assert state_of(ended, 30) is CheckpointState.DELETING


def test_a_deleted_trial_has_nothing_to_give_up(ended: Desk) -> None:
    ended.tell(TrialDeleted())
    assert ended.tell(unwanted(10)) is None


def test_a_record_of_before_checkpoints_could_go_is_complete(desk: Desk) -> None:
    name = f"checkpoint/{uuid(10)}"
    fields = json.loads(desk.parts[name])
    del fields["state"]
    desk.parts[name] = json.dumps(fields).encode()
    assert state_of(desk, 10) is CheckpointState.COMPLETED


def test_a_row_that_is_not_there_pins_nothing() -> None:
    assert read_pin(b"") == Pin()
    assert read_pin(write_pin(Pin((1, 2), gone=True))) == Pin((1, 2), gone=True)
