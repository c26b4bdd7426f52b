"""The stored status of each trial of a halving."""

import pytest

from control_plane.searchers.blob_store import NoBlobStore
from control_plane.searchers.halving.trial_statuses import (
    TRIALS_PER_BLOB,
    TrialStatus,
    TrialStatuses,
)
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

# Trials near the end of a blob, and a trial far beyond all written statuses.
TRIALS = [0, 1, TRIALS_PER_BLOB - 1, TRIALS_PER_BLOB, 10 * TRIALS_PER_BLOB]


@pytest.mark.parametrize("trial", TRIALS)
def test_trial_without_status_is_in_first_rung(trial: int) -> None:
    assert TrialStatuses(RecordingBlobStore(), ()).status_of(trial) == TrialStatus(
        0, exited=False, closed=False
    )


def test_first_trials_are_assigned_to_brackets_in_order() -> None:
    # 2 trials for bracket 0, 0 for bracket 1, 3 for bracket 2.
    statuses = TrialStatuses(NoBlobStore(), (2, 0, 3))
    assert [statuses.bracket_of(trial) for trial in range(5)] == [0, 0, 2, 2, 2]


def test_all_trials_of_single_bracket_are_in_bracket_0() -> None:
    assert TrialStatuses(NoBlobStore(), ()).bracket_of(1_000_000) == 0


@pytest.mark.parametrize("bracket", [0, 1, 254])
@pytest.mark.parametrize("trial", TRIALS)
def test_stored_bracket_reads_back(trial: int, bracket: int) -> None:
    statuses = TrialStatuses(RecordingBlobStore(), (1, 1))
    statuses.set_bracket(trial, bracket)
    assert statuses.bracket_of(trial) == bracket
    assert statuses.status_of(trial) == TrialStatus()


@pytest.mark.parametrize("exited", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize("rung", [0, 1, 99])
def test_status_changes_neither_bracket_nor_other_trials(
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


def test_reads_statuses_of_earlier_versions() -> None:
    blobs = RecordingBlobStore()
    # Three bytes per trial: bracket + 1, rung, flags. Flag 1: exited, flag 2: closed.
    blobs.write("0", bytes((2, 3, 0, 0, 1, 3)))
    statuses = TrialStatuses(blobs, ())
    assert (statuses.bracket_of(0), statuses.status_of(0)) == (1, TrialStatus(3))
    assert statuses.status_of(1) == TrialStatus(1, exited=True, closed=True)


def test_reading_does_not_change_blobs() -> None:
    blobs = RecordingBlobStore()
    statuses = TrialStatuses(blobs, ())
    statuses.status_of(9)
    assert blobs.written == []
    statuses.set_status(0, TrialStatus(1))
    assert blobs.contents == {"0": bytes((0, 1, 0))}


def test_blobs_stay_small_and_change_writes_a_single_blob() -> None:
    blobs = RecordingBlobStore()
    statuses = TrialStatuses(blobs, ())
    for trial in range(3 * TRIALS_PER_BLOB):
        statuses.set_status(trial, TrialStatus(1))
    assert len(blobs.contents) == 3
    assert {len(blob) for blob in blobs.contents.values()} == {3 * TRIALS_PER_BLOB}
    blobs.written.clear()
    statuses.set_status(TRIALS_PER_BLOB, TrialStatus(2))
    assert len(blobs.written) == 1
