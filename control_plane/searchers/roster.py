"""What a halving knows of each trial: its bracket, the rung it is in, and whether it ended.

Three bytes a trial, in parts of at most 300 bytes. A trial that nothing was said of is in rung 0,
and in the bracket that the first trials were divided into.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from control_plane.searchers.parts import Parts

TRIALS_PER_PART = 96
# Trials that one step of closing looks at: those of a few parts.
LOOKED_AT_MAX = 7 * TRIALS_PER_PART
_BYTES = 3
_EXITED, _CLOSED, _REPORTED = 1, 2, 4


class Standing(NamedTuple):
    """Where a trial stands. `exited`: it ended early; `closed`: it was closed, or it exited;
    `reported`: its result in the rung is there, which states of before this was kept do not say.
    """

    rung: int = 0
    exited: bool = False
    closed: bool = False
    reported: bool = False


class Roster:
    """The trials among the parts; `first` counts those that each bracket creates at the start.
    Nobody else writes it while it is in use: a part is read once.
    """

    def __init__(self, parts: Parts, first: Sequence[int]) -> None:
        self._parts = parts
        self._ends = tuple(accumulate(first))
        self._pieces: dict[int, bytearray] = {}

    def bracket(self, trial: int) -> int:
        """The bracket of a trial."""
        noted = self._bytes(trial)[0]
        return noted - 1 if noted else bisect_right(self._ends, trial)

    def enlist(self, trial: int, bracket: int) -> None:
        """A trial was created for a bracket, 0 to 254."""
        self._put(trial, 0, (bracket + 1, *self._bytes(trial)[1:]))

    def standing(self, trial: int) -> Standing:
        """Where the trial stands."""
        _, rung, flags = self._bytes(trial)
        return Standing(rung, flags & _EXITED > 0, flags & _CLOSED > 0, flags & _REPORTED > 0)

    def stand(self, trial: int, standing: Standing) -> None:
        """The trial stands there now."""
        rung, exited, closed, reported = standing
        self._put(trial, 1, (rung, exited * _EXITED | closed * _CLOSED | reported * _REPORTED))

    def close_left(
        self, bracket: int, rungs: int, trials: range, close_max: int
    ) -> tuple[list[int], int | None]:
        """Close at most `close_max` of the `trials` of a bracket that stand in its first `rungs`
        rungs and were not closed; those, and the trial to go on from, None after the last one.
        """
        closed: list[int] = []
        for trial in trials[:LOOKED_AT_MAX]:
            if len(closed) == close_max:
                return closed, trial
            _, rung, flags = self._bytes(trial)
            if rung < rungs and not flags & _CLOSED and self.bracket(trial) == bracket:
                self._put(trial, 1, (rung, flags | _CLOSED))
                closed.append(trial)
        following = trials.start + LOOKED_AT_MAX
        return closed, following if following < trials.stop else None

    def _bytes(self, trial: int) -> bytearray:
        part, place = divmod(trial, TRIALS_PER_PART)
        return self._piece(part)[place * _BYTES : (place + 1) * _BYTES] or bytearray(_BYTES)

    def _put(self, trial: int, at: int, values: tuple[int, ...]) -> None:
        """Replace the trial's bytes from the one `at` on, to the last."""
        part, place = divmod(trial, TRIALS_PER_PART)
        piece, end = self._piece(part), (place + 1) * _BYTES
        if len(piece) < end:
            piece.extend(bytes(end - len(piece)))
        piece[end - _BYTES + at : end] = values
        self._parts.write(str(part), bytes(piece))

    def _piece(self, part: int) -> bytearray:
        piece = self._pieces.get(part)
        if piece is None:
            piece = self._pieces[part] = bytearray(self._parts.read(str(part)) or b"")
        return piece
