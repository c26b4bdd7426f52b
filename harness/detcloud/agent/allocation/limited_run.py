"""The limits of a run: the watch over output, the warnings in the log, and the exit record."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from detcloud.agent.allocation.limits import GRACE_MS, SAVING_GRACE_MS
from detcloud.agent.allocation.output_growth import OutputGrowth
from detcloud.agent.allocation.run_limits import IDLE_TIMEOUT, LimitWatch, RunLimits
from detcloud.shared.use_mark import read_use_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.allocation.directory import AllocationDirectory

# An idle trial of an experiment may still complete its work in the grace before the kill.
_OWN_ENDS: Final = ("completed", "invalid_hp")


class LimitedRun:
    """The limits of a run, and the reason if a limit has ended the run.

    Attributes:
        watch: the decisions about the limits.
        end_reason: the reason for which the agent has ended the idle run. "" before.
    """

    def __init__(self, directory: AllocationDirectory, limits: RunLimits, now_ms: int) -> None:
        """Begin to watch. The time until now does not count as idle."""
        self.watch = LimitWatch(limits, now_ms)
        self.end_reason = ""
        self._directory = directory
        self._is_experiment = limits.is_experiment
        # The output of a command or shell does not count as use.
        self._growth = OutputGrowth(directory) if limits.is_experiment else None
        self._warning = ""

    @classmethod
    def of_spec(
        cls, directory: AllocationDirectory, spec: Mapping[str, Any] | None, now_ms: int
    ) -> LimitedRun | None:
        """Return the run with the limits of a specification. None without valid limits."""
        limits = RunLimits.of_spec(spec)
        return None if limits is None else cls(directory, limits, now_ms)

    @property
    def saves(self) -> bool:
        """Whether an idle run saves a checkpoint before the kill."""
        return self._is_experiment

    @property
    def grace_ms(self) -> int:
        """The time in ms from the end of an idle run's timeout to the kill."""
        return SAVING_GRACE_MS if self._is_experiment else GRACE_MS

    def check(self, now_ms: int) -> bool:
        """Write a due warning to the log. Return whether the run must end now."""
        self.watch.note_use(read_use_ms(self._directory.home), now_ms)
        if self._growth is not None and self._growth.look():
            self.watch.note_use(now_ms, now_ms)
        outcome = self.watch.check(now_ms)
        if outcome.warning:
            self._warning = outcome.warning
            with contextlib.suppress(OSError):
                self._directory.write_notices([f"[detcloud] {outcome.warning}"])
            if self._growth is not None:
                # The warning itself is no output of the trial.
                self._growth.look()
        self.end_reason = outcome.end_reason
        return bool(outcome.end_reason)

    def take_warning(self) -> str:
        """Return the warning that `check` has found since the last call. "" without one."""
        warning, self._warning = self._warning, ""
        return warning

    def exit_fields(self, reason: str) -> dict[str, Any]:
        """Return the fields of the `exited` record that name the limit.

        Return {} for a run that the agent has not ended, for a lost run, and for a trial of an
        experiment that has completed its work.

        Args:
            reason: the reason of the exit without the limit.
        """
        if not self.end_reason or reason == "lost":
            return {}
        if self._is_experiment and reason in _OWN_ENDS:
            return {}
        return {"reason": "idle", "message": self.end_reason, "limit": IDLE_TIMEOUT}
