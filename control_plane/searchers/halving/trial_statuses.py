"""The status of each trial of a halving: its bracket, the rung it is in, and whether it ended.

A trial takes three bytes, in blobs of at most 300 bytes. A trial without a record is in rung 0, and
in the bracket that the first trials were divided into.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore

TRIALS_PER_BLOB = 96
# Trials that one step of closing examines: those of a few blobs.
EXAMINED_TRIALS_MAX = 7 * TRIALS_PER_BLOB
_BYTES = 3
_EXITED, _CLOSED, _REPORTED = 1, 2, 4


class TrialStatus(NamedTuple):
    """The status of a trial. `exited`: it ended early; `closed`: it was closed, or it exited;
    `reported`: its result in the rung is there, which the oldest stored states do not say.
    """

    rung: int = 0
    exited: bool = False
    closed: bool = False
    reported: bool = False


class TrialStatuses:
    """The statuses among the blobs; `first` counts the trials that each bracket creates at the
    start. Nobody else may write them while they are in use: a blob is read once.
    """

    def __init__(self, blobs: BlobStore, first: Sequence[int]) -> None:
        self._blobs = blobs
        self._ends = tuple(accumulate(first))
        self._cached_blobs: dict[int, bytearray] = {}

    def bracket_of(self, trial: int) -> int:
        """Return the number of a trial's bracket."""
        recorded = self._read_bytes(trial)[0]
        return recorded - 1 if recorded else bisect_right(self._ends, trial)

    def set_bracket(self, trial: int, bracket: int) -> None:
        """Record that a trial was created for a bracket, 0 to 254."""
        self._write_bytes(trial, 0, (bracket + 1, *self._read_bytes(trial)[1:]))

    def status_of(self, trial: int) -> TrialStatus:
        """Return the status of a trial."""
        _, rung, flags = self._read_bytes(trial)
        return TrialStatus(rung, flags & _EXITED > 0, flags & _CLOSED > 0, flags & _REPORTED > 0)

    def set_status(self, trial: int, status: TrialStatus) -> None:
        """Record the status of a trial."""
        rung, exited, closed, reported = status
        self._write_bytes(
            trial, 1, (rung, exited * _EXITED | closed * _CLOSED | reported * _REPORTED)
        )

    def close_left_behind(
        self, bracket: int, rungs: int, trials: range, close_max: int
    ) -> tuple[list[int], int | None]:
        """Close at most `close_max` of the `trials` of a bracket that stand in its first `rungs`
        rungs and were not closed. Return them, and the trial to go on from, None after the last
        one.
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
        """Replace the trial's bytes from index `at` to the last."""
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
