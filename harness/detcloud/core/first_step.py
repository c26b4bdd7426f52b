"""The report of the first step of a run that replaces another run.

The cluster measures how long a trial did not train (docs/spot.md). It needs the time of the
first step, and the durations of the phases before it that only the trial knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from detcloud.shared.trial_directory import Reporter, TrialSpec

FIRST_STEP = "first_step"
RESTORE = "restore"


class FirstStep:
    """Measures the restore of a run, and reports the run's first step once.

    Durations are measured with a clock that never goes back.
    """

    def __init__(
        self,
        spec: TrialSpec | None = None,
        report: Reporter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the measurement. The time until the first step begins now.

        Without a `report`, and for a run that replaces no other run, nothing is ever reported. Only
        the chief of a trial on a cluster has a report.
        """
        self._first_batch = spec.steps_completed if spec is not None else 0
        is_wanted = spec is not None and spec.replaces_run
        self._report = report if is_wanted else None
        self._clock = clock
        self._restore_seconds = 0.0
        self._restoring = 0
        self._began_at = clock()

    @contextmanager
    def measure_restore(self) -> Iterator[None]:
        """Add the time of the block to the time of the restore. A nested block counts once."""
        if self._report is None:
            yield
            return
        began = self._clock()
        self._restoring += 1
        try:
            yield
        finally:
            self._restoring -= 1
            if not self._restoring:
                self._began_at = self._clock()
                self._restore_seconds += self._began_at - began

    def report(self, steps_completed: int) -> None:
        """Report that the run has trained at least a step, unless this was reported before.

        `steps_completed` is the number of batches since the trial's start. A number that is not
        above that of the run's checkpoint is no step. Raises DetcloudError if the report cannot be
        written.
        """
        if self._report is None or steps_completed <= self._first_batch:
            return
        report, self._report = self._report, None
        durations = {
            RESTORE: round(self._restore_seconds * 1000),
            FIRST_STEP: round((self._clock() - self._began_at) * 1000),
        }
        report(FIRST_STEP, steps_completed=steps_completed, durations_ms=durations)
