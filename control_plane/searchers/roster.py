"""What a halving knows of each trial: its bracket, the rung it is in, and whether it ended.

Three bytes a trial, in parts of at most 1 KB. A trial that nothing was said of is in rung 0, and in
the bracket that the first trials were divided into.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from control_plane.searchers.parts import Parts

TRIALS_PER_PART = 320
# Trials that one step of closing looks at: those of a few parts.
LOOKED_AT_MAX = 2_000
_BYTES = 3
_EXITED, _CLOSED = 1, 2


class Standing(NamedTuple):
    """Where a trial stands. `exited`: it ended early; `closed`: it was closed, or it exited."""

    rung: int = 0
    exited: bool = False
    closed: bool = False


class Roster:
    """The trials among the parts; `first` counts those that each bracket creates at the start."""

    def __init__(self, parts: Parts, first: Sequence[int]) -> None:
        self._parts = parts
        self._ends = tuple(accumulate(first))

    def bracket(self, trial: int) -> int:
        """The bracket of a trial."""
        noted = self._bytes(trial)[0]
        return noted - 1 if noted else bisect_right(self._ends, trial)

    def enlist(self, trial: int, bracket: int) -> None:
        """A trial was created for a bracket, 0 to 254."""
        _, rung, flags = self._bytes(trial)
        self._put(trial, bytes((bracket + 1, rung, flags)))

    def standing(self, trial: int) -> Standing:
        """Where the trial stands."""
        _, rung, flags = self._bytes(trial)
        return Standing(rung, bool(flags & _EXITED), bool(flags & _CLOSED))

    def stand(self, trial: int, standing: Standing) -> None:
        """The trial stands there now."""
        flags = standing.exited * _EXITED | standing.closed * _CLOSED
        self._put(trial, bytes((self._bytes(trial)[0], standing.rung, flags)))

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
            standing = self.standing(trial)
            is_left = standing.rung < rungs and not standing.closed
            if is_left and self.bracket(trial) == bracket:
                self.stand(trial, standing._replace(closed=True))
                closed.append(trial)
        following = trials.start + LOOKED_AT_MAX
        return closed, following if following < trials.stop else None

    def _bytes(self, trial: int) -> bytes:
        part, place = divmod(trial, TRIALS_PER_PART)
        piece = self._parts.read(str(part)) or b""
        return piece[place * _BYTES : (place + 1) * _BYTES] or bytes(_BYTES)

    def _put(self, trial: int, value: bytes) -> None:
        part, place = divmod(trial, TRIALS_PER_PART)
        piece = bytearray(self._parts.read(str(part)) or b"")
        piece.extend(bytes(max(0, (place + 1) * _BYTES - len(piece))))
        piece[place * _BYTES : (place + 1) * _BYTES] = value
        self._parts.write(str(part), bytes(piece))
