"""The status of each trial of a halving: bracket, current rung, and whether the trial ended.

A status takes three bytes, in blobs of at most 300 bytes. A trial without a stored status is in
rung 0. The trial's number then determines the bracket, by the number of first trials per bracket.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore

TRIALS_PER_BLOB = 96
EXAMINED_TRIALS_MAX = 7 * TRIALS_PER_BLOB
"""The largest number of trials that one step of closing examines: the trials of a few blobs."""
_BYTES = 3
_EXITED, _CLOSED, _REPORTED = 1, 2, 4


class TrialStatus(NamedTuple):
    """The status of a trial."""

    rung: int = 0
    """The index of the trial's current rung."""
    exited: bool = False
    """Whether the trial ended early."""
    closed: bool = False
    """Whether the trial ended early, or the method closed the trial."""
    reported: bool = False
    """Whether the trial has a result in the current rung. False in the oldest stored statuses."""


class TrialStatuses:
    """The statuses of all trials of a search, stored in blobs.

    Each blob is read once. Nothing else may write these blobs while the object is in use.
    """

    def __init__(self, blobs: BlobStore, first: Sequence[int]) -> None:
        """Set the blobs. `first` is the number of trials that each bracket creates at the start."""
        self._blobs = blobs
        self._ends = tuple(accumulate(first))
        self._cached_blobs: dict[int, bytearray] = {}

    def bracket_of(self, trial: int) -> int:
        """Return the number of the bracket that created a trial."""
        recorded = self._read_bytes(trial)[0]
        return recorded - 1 if recorded else bisect_right(self._ends, trial)

    def set_bracket(self, trial: int, bracket: int) -> None:
        """Write the number of a trial's bracket, from 0 to 254."""
        self._write_bytes(trial, 0, (bracket + 1, *self._read_bytes(trial)[1:]))

    def status_of(self, trial: int) -> TrialStatus:
        """Return the status of a trial. Without a stored status: rung 0, neither ended nor
        reported.
        """
        _, rung, flags = self._read_bytes(trial)
        return TrialStatus(rung, flags & _EXITED > 0, flags & _CLOSED > 0, flags & _REPORTED > 0)

    def set_status(self, trial: int, status: TrialStatus) -> None:
        """Write the status of a trial. The trial's bracket stays unchanged."""
        rung, exited, closed, reported = status
        self._write_bytes(
            trial, 1, (rung, exited * _EXITED | closed * _CLOSED | reported * _REPORTED)
        )

    def close_left_behind(
        self, bracket: int, rungs: int, trials: range, close_max: int
    ) -> tuple[list[int], int | None]:
        """Record that open trials of a bracket are closed: trials in the first `rungs` rungs.

        Examine at most EXAMINED_TRIALS_MAX of `trials`, and close at most `close_max` trials.

        Return the closed trials, and the first trial that is not examined yet. None in place of
        that trial if all of `trials` are examined.
        """
        closed: list[int] = []
        for trial in trials[:EXAMINED_TRIALS_MAX]:
            if len(closed) == close_max:
                return closed, trial
            _, rung, flags = self._read_bytes(trial)
            if rung < rungs and not flags & _CLOSED and self.bracket_of(trial) == bracket:
                self._write_bytes(trial, 1, (rung, flags | _CLOSED))
                closed.append(trial)
        following = trials.start + EXAMINED_TRIALS_MAX
        return closed, following if following < trials.stop else None

    def _read_bytes(self, trial: int) -> bytearray:
        part, place = divmod(trial, TRIALS_PER_BLOB)
        return self._read_blob(part)[place * _BYTES : (place + 1) * _BYTES] or bytearray(_BYTES)

    def _write_bytes(self, trial: int, at: int, values: tuple[int, ...]) -> None:
        """Write the last bytes of the trial's status, from index `at`."""
        part, place = divmod(trial, TRIALS_PER_BLOB)
        blob, end = self._read_blob(part), (place + 1) * _BYTES
        if len(blob) < end:
            blob.extend(bytes(end - len(blob)))
        blob[end - _BYTES + at : end] = values
        self._blobs.write(str(part), bytes(blob))

    def _read_blob(self, part: int) -> bytearray:
        blob = self._cached_blobs.get(part)
        if blob is None:
            blob = self._cached_blobs[part] = bytearray(self._blobs.read(str(part)) or b"")
        return blob
