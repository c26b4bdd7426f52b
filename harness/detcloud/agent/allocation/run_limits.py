"""The limits of a run: warnings before the end, and the end of an idle run.

A run is a command, notebook, shell, or a run of a trial of an experiment. The cluster ends a run
that has come to its `max_duration`. The agent ends an idle run, because only the agent sees the
bytes of tunnels and terminals, and the work of GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

IDLE_TIMEOUT: Final = "idle_timeout"
WARNING_MS = 300_000
"""The time before the end at which a line in the log warns, at most half of an idle timeout."""


@dataclass(frozen=True)
class RunLimits:
    """The limits of a run, from the field `run_limits` of the specification."""

    ends_ms: int | None = None
    """The end of the run in epoch ms. None: no limit."""
    idle_timeout_ms: int | None = None
    """The time in ms after which an idle run ends. None: no limit."""
    is_experiment: bool = False
    """Whether the run belongs to a trial of an experiment. The output of an experiment's trial
    counts as use, and an idle trial saves a checkpoint before the end.
    """

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any] | None) -> RunLimits | None:
        """Return the limits in a specification. None without valid limits.

        A trial of an experiment on several nodes has an idle timeout on the node of rank 0 only,
        because the other nodes may neither report nor print anything.
        """
        spec = spec or {}
        fields = spec.get("run_limits")
        if not isinstance(fields, Mapping):
            return None
        names = ("ends_ms", "idle_timeout_ms", "trial_idle_timeout_ms")
        values = [fields.get(name) for name in names]
        ends_ms, run_ms, trial_ms = (
            value if type(value) is int and value > 0 else None for value in values
        )
        if spec.get("node_rank", 0) != 0:
            trial_ms = None
        idle_ms = run_ms if trial_ms is None else trial_ms
        if ends_ms is None and idle_ms is None:
            return None
        return cls(ends_ms, idle_ms, is_experiment=trial_ms is not None)


class Outcome(NamedTuple):
    """The result of a check of the limits. Empty texts require nothing."""

    warning: str = ""
    """A line for the log of the trial."""
    end_reason: str = ""
    """The reason why the run must end now."""


class LimitWatch:
    """Decides about the limits of a run. Pure: the caller provides the time."""

    def __init__(self, limits: RunLimits, now_ms: int) -> None:
        """Begin to watch. The time until now does not count as idle."""
        self._limits = limits
        self._used_ms = now_ms
        self._has_warned_of_end = False
        self._has_warned_of_idling = False

    @property
    def has_idle_timeout(self) -> bool:
        """Whether an idle run ends."""
        return self._limits.idle_timeout_ms is not None

    def note_use(self, used_ms: int, now_ms: int) -> None:
        """Note that the run was used at a time. Times in the future count as now."""
        used_ms = min(used_ms, now_ms)
        if used_ms > self._used_ms:
            self._used_ms, self._has_warned_of_idling = used_ms, False

    def check(self, now_ms: int) -> Outcome:
        """Check the limits at a time. Each warning is returned once.

        The end of an idle run always follows a warning.
        """
        ends_ms = self._limits.ends_ms
        if ends_ms is not None and not self._has_warned_of_end and now_ms >= ends_ms - WARNING_MS:
            self._has_warned_of_end = True
            return Outcome(self.end_warning(now_ms))
        return self._check_idling(now_ms)

    def end_warning(self, now_ms: int) -> str:
        """Return the warning of the end for a terminal that is opened at a time.

        Return "" without a `max_duration`, and before `check` has warned of the end.
        """
        ends_ms = self._limits.ends_ms
        if ends_ms is None or not self._has_warned_of_end:
            return ""
        left = _time_text(max(0, ends_ms - now_ms))
        return f"this run ends in {left}, because it comes to its max_duration"

    def _check_idling(self, now_ms: int) -> Outcome:
        timeout_ms = self._limits.idle_timeout_ms
        if timeout_ms is None:
            return Outcome()
        grace_ms = min(WARNING_MS, timeout_ms // 2)
        left_ms = self._used_ms + timeout_ms - now_ms
        if left_ms > grace_ms:
            return Outcome()
        if not self._has_warned_of_idling:
            self._has_warned_of_idling = True
            idle = _time_text(now_ms - self._used_ms)
            # After a pause of the machine, the grace still follows the warning.
            self._used_ms = now_ms - timeout_ms + grace_ms
            left = _time_text(grace_ms)
            return Outcome(self._idle_warning(idle, left))
        if left_ms > 0:
            return Outcome()
        return Outcome(end_reason=f"it was idle for {_time_text(timeout_ms)} ({IDLE_TIMEOUT})")

    def _idle_warning(self, idle: str, left: str) -> str:
        """Return the warning before the end of an idle run."""
        if self._limits.is_experiment:
            return (
                f"this trial has printed and reported nothing for {idle}, and its GPUs were idle;"
                f" it is canceled in {left} unless that changes ({IDLE_TIMEOUT})"
            )
        return f"this run has been idle for {idle}, and ends in {left} if nobody uses it"


def _time_text(time_ms: int) -> str:
    """Return a duration in the largest unit that fits at least twice: s, min or h."""
    seconds = time_ms / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
