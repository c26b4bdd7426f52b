"""The decision whether a run hangs. Pure: the caller provides the time."""

from __future__ import annotations

from collections import deque
from statistics import median

USUAL_FACTOR = 10
"""A hang is a silence of this many times the usual time between two outputs."""
INTERVALS_KEPT = 100


class HangWatch:
    """Learns the usual time between two outputs of a run, and detects a longer silence."""

    def __init__(self, timeout_ms: int, now_ms: int) -> None:
        """Begin to watch.

        Args:
            timeout_ms: the shortest silence that counts as a hang.
            now_ms: the time of the start, which counts as an output.
        """
        self._timeout_ms = timeout_ms
        self._output_ms = now_ms
        self._intervals: deque[int] = deque(maxlen=INTERVALS_KEPT)
        self._is_hanging = False

    @property
    def limit_ms(self) -> int:
        """The time in ms after which the present silence counts as a hang."""
        usual = median(self._intervals) if self._intervals else 0
        return max(self._timeout_ms, round(USUAL_FACTOR * usual))

    def note_output(self, now_ms: int) -> bool:
        """Note an output. Return whether the run had hung before."""
        had_hung, self._is_hanging = self._is_hanging, False
        if not had_hung:
            self._intervals.append(max(0, now_ms - self._output_ms))
        self._output_ms = now_ms
        return had_hung

    def check(self, now_ms: int) -> int:
        """Return the length of a silence that has just become a hang, in ms. 0 otherwise.

        A clock that was set back begins a new silence.
        """
        self._output_ms = min(self._output_ms, now_ms)
        silent_ms = now_ms - self._output_ms
        if self._is_hanging or silent_ms < self.limit_ms:
            return 0
        self._is_hanging = True
        return silent_ms
