"""The simulated use of a node's slots, with the lines that the agent reports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

HOUR_MS = 3_600_000


@dataclass
class MeasuredUse:
    """The use of the slots of a process."""

    slots: int = 0
    draw_low_use: Callable[[], bool] = lambda: False
    """Returns whether the use becomes low, or a low use ends."""
    _since_ms: int | None = None
    _is_low: bool = False

    def begin(self, now_ms: int) -> Iterator[dict[str, Any]]:
        """Begin to measure. Yield a line if the use is low from the start."""
        self._since_ms = now_ms
        if self.slots and self.draw_low_use():
            yield from self._change()

    def look_again(self) -> Iterator[dict[str, Any]]:
        """Yield a line if a low use ends."""
        if self._is_low and self.draw_low_use():
            yield from self._change()

    def end(self, now_ms: int) -> Iterator[dict[str, Any]]:
        """Yield the line with the sums. Yield nothing for a process that was not measured."""
        measured_ms = 0 if self._since_ms is None else (now_ms - self._since_ms) * self.slots
        if measured_ms > 0:
            low_ms = measured_ms if self._is_low else 0
            sums = {"busy_ms": measured_ms - low_ms, "low_ms": low_ms, "memory_ms": 0}
            yield {"kind": "use", "measured_ms": measured_ms, **sums}

    def _change(self) -> Iterator[dict[str, Any]]:
        self._is_low = not self._is_low
        percent = 0 if self._is_low else 100
        yield {"kind": "low_use", "is_low": self._is_low, "percent": percent, "time_ms": HOUR_MS}
