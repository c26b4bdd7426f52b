"""The stored status of each trial of a halving."""

import pytest

from control_plane.searchers.blob_store import NoBlobStore
from control_plane.searchers.halving.trial_statuses import (
    TRIALS_PER_BLOB,
    TrialStatus,
    TrialStatuses,
)
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

# About a part's end, and far beyond what was written.
TRIALS = [0, 1, TRIALS_PER_BLOB - 1, TRIALS_PER_BLOB, 10 * TRIALS_PER_BLOB]


@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_that_nothing_was_said_of_is_in_the_first_rung(trial: int) -> None:
    assert TrialStatuses(RecordingBlobStore(), ()).status_of(trial) == TrialStatus(
        0, exited=False, closed=False
    )


def test_the_first_trials_are_in_the_brackets_they_were_created_for() -> None:
    # 2 for bracket 0, 0 for bracket 1, 3 for bracket 2.
    statuses = TrialStatuses(NoBlobStore(), (2, 0, 3))
    assert [statuses.bracket_of(trial) for trial in range(5)] == [0, 0, 2, 2, 2]


def test_every_trial_of_a_single_bracket_is_in_it() -> None:
    assert TrialStatuses(NoBlobStore(), ()).bracket_of(1_000_000) == 0


@pytest.mark.parametrize("bracket", [0, 1, 254])
@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_that_was_enlisted_is_in_that_bracket(trial: int, bracket: int) -> None:
    statuses = TrialStatuses(RecordingBlobStore(), (1, 1))
    statuses.set_bracket(trial, bracket)
    assert statuses.bracket_of(trial) == bracket
    assert statuses.status_of(trial) == TrialStatus()


@pytest.mark.parametrize("exited", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("rung", [0, 1, 99])
def test_a_status_is_stored_beside_the_bracket_and_the_neighbours(
    rung: int, reported: bool, closed: bool, exited: bool
) -> None:
    blobs = RecordingBlobStore()
    status = TrialStatus(rung, exited, closed, reported)
    TrialStatuses(blobs, (1, 1)).set_bracket(7, 5)
    TrialStatuses(blobs, (1, 1)).set_status(7, status)
    statuses = TrialStatuses(blobs, (1, 1))
    assert (statuses.status_of(7), statuses.bracket_of(7)) == (status, 5)
    assert {statuses.status_of(trial) for trial in (6, 8)} == {TrialStatus()}
    statuses.set_status(7, TrialStatus())
    assert (statuses.status_of(7), statuses.bracket_of(7)) == (TrialStatus(), 5)


def test_statuses_of_before_results_were_noted_read_as_they_did() -> None:
    blobs = RecordingBlobStore()
    # Bracket 1 + 1, rung 3, and of the flags 1: exited, 2: closed.
    blobs.write("0", bytes((2, 3, 0, 0, 1, 3)))
    statuses = TrialStatuses(blobs, ())
    assert (statuses.bracket_of(0), statuses.status_of(0)) == (1, TrialStatus(3))
    assert statuses.status_of(1) == TrialStatus(1, exited=True, closed=True)


def test_reading_writes_nothing_and_makes_no_part_longer() -> None:
    blobs = RecordingBlobStore()
    statuses = TrialStatuses(blobs, ())
    statuses.status_of(9)
    assert blobs.written == []
    statuses.set_status(0, TrialStatus(1))
    assert blobs.contents == {"0": bytes((0, 1, 0))}


def test_parts_stay_small_and_a_change_writes_one() -> None:
    blobs = RecordingBlobStore()
    statuses = TrialStatuses(blobs, ())
    for trial in range(3 * TRIALS_PER_BLOB):
        statuses.set_status(trial, TrialStatus(1))
    assert len(blobs.contents) == 3
    assert {len(blob) for blob in blobs.contents.values()} == {3 * TRIALS_PER_BLOB}
    blobs.written.clear()
    statuses.set_status(TRIALS_PER_BLOB, TrialStatus(2))
    assert len(blobs.written) == 1
