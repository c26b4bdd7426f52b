"""The durations of a trial's start on this machine, by the monotonic clock.

The cluster adds up the durations of the runs that replace other runs. It gets no times of day,
because the clock of a machine may be wrong.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CODE, IMAGE, PACKAGES = "code", "image", "packages"
"""The phases of a start that the agent measures (docs/agent-protocol.md)."""
MACHINE_AGE, AGENT_AGE = "machine", "agent"
"""The time since the start of the machine's kernel, and since the enrolment of the agent."""


class StartTimes:
    """The durations of a trial's start. Each phase may be measured several times.

    `enrolled_at` returns the time of the agent's enrolment by `clock`, or None before. `clock`
    returns seconds that never decrease. `early_pull_failure` is why the image of the trial was not
    pulled before the trial was assigned, or "".
    """

    def __init__(
        self,
        enrolled_at: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enrolled_at = enrolled_at
        self._clock = clock
        self.early_pull_failure = ""
        self._seconds: dict[str, float] = {}
        self._open: tuple[str, float] | None = None

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time of the block to a phase, also if the block raises an exception."""
        began = self._clock()
        try:
            yield
        finally:
            self._add(phase, began)

    def begin(self, phase: str) -> None:
        """Begin a phase that ends with the next call of `durations`."""
        self._open = (phase, self._clock())

    def durations(self) -> dict[str, int]:
        """End an open phase, and return all durations and ages in ms by name.

        The ages are left out if no phase was measured: an agent that has adopted a running trial
        knows nothing about its start. The age of the machine is left out if the system has no clock
        of it, and that of the agent before the enrolment.
        """
        if self._open is not None:
            self._add(*self._open)
            self._open = None
        if not self._seconds:
            return {}
        ages = {MACHINE_AGE: _machine_seconds(), AGENT_AGE: self._agent_seconds()}
        known = {name: seconds for name, seconds in ages.items() if seconds is not None}
        return {name: round(seconds * 1000) for name, seconds in (self._seconds | known).items()}

    def _add(self, phase: str, began: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock() - began

    def _agent_seconds(self) -> float | None:
        enrolled_at = self._enrolled_at()
        return None if enrolled_at is None else self._clock() - enrolled_at


def _machine_seconds() -> float | None:
    """Return the seconds since the start of the kernel. Return None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME)
