"""The detection of low use. Pure: the caller provides the time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.usage.use_sums import UseSums

MARKS_MAX = 60
RECOVERY_FACTOR = 1.5
"""The use that ends low use, as a multiple of the policy's percentage. A use near the percentage
would otherwise begin and end low use again and again.
"""


class _Mark(NamedTuple):
    at_ms: int
    measured_ms: int
    busy_ms: int


class LowUse(NamedTuple):
    """The begin or the end of low use."""

    is_low: bool
    percent: float
    """The mean use over the time of the policy, in percent."""
    time_ms: int
    """The time of the policy."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a `low_use` record."""
        return self._asdict()


class LowUseWatch:
    """The mean use of the slots over the last `time_ms`.

    The watch keeps marks of the sums, and compares the present sums with the mark before the time.
    """

    def __init__(self, percent: int, time_ms: int) -> None:
        """Begin to watch. Use is low below `percent`."""
        self._percent = percent
        self._time_ms = time_ms
        self._marks: deque[_Mark] = deque()
        self._is_low = False

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> LowUseWatch | None:
        """Return a watch for the field `low_use` of a specification. None without a valid field."""
        fields = spec.get("low_use")
        if not isinstance(fields, dict):
            return None
        percent, time_ms = fields.get("percent"), fields.get("time_ms")
        if type(percent) is not int or type(time_ms) is not int or percent <= 0 or time_ms <= 0:
            return None
        return cls(percent, time_ms)

    def check(self, sums: UseSums, now_ms: int) -> LowUse | None:
        """Return the begin or end of low use. None without a change, and in the first `time_ms`.

        Args:
            sums: the sums of all samples.
            now_ms: the present time, in ms of a clock that nobody sets.
        """
        mark = _Mark(now_ms, sums.measured_ms, sums.busy_ms)
        if not self._marks or now_ms - self._marks[-1].at_ms >= self._time_ms // MARKS_MAX:
            self._marks.append(mark)
        start = None
        while self._marks and now_ms - self._marks[0].at_ms >= self._time_ms:
            start = self._marks.popleft()
        if start is None:
            return None
        self._marks.appendleft(start)
        measured_ms = mark.measured_ms - start.measured_ms
        if measured_ms <= 0:
            return None
        percent = 100 * (mark.busy_ms - start.busy_ms) / measured_ms
        limit = min(100.0, self._percent * (RECOVERY_FACTOR if self._is_low else 1))
        is_low = percent < limit
        if is_low == self._is_low:
            return None
        self._is_low = is_low
        return LowUse(is_low, round(percent, 2), self._time_ms)
