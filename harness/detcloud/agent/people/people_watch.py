"""The watch over the use of the machine by people, for the report to the cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.people.console import is_console_used

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.people.hours import Hours

POLL_SECONDS = 5.0
AT_CONSOLE = "somebody is logged in at the console"


class Occupancy(NamedTuple):
    """The use of the machine by people, during which the machine takes no work."""

    reason: str
    """The text for users, without names of people."""
    running: str
    """The rule for running trials: `finish` or `checkpoint`."""

    def fields(self) -> dict[str, str]:
        """Return the occupancy as a field of an enrolment."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class OccupancyRules:
    """The operator's rules for the use of the machine by people."""

    hours: tuple[Hours, ...] = ()
    """The hours of people, in the machine's time zone."""
    running: str = "checkpoint"
    """The rule for running trials: `finish` or `checkpoint`."""
    watches_console: bool = False
    """Whether logins at the console count."""
    delay_minutes: int = 0
    """How long the machine stays without work after the last logout."""


class OccupancyWatch:
    """The present use of the machine by people: hours of the week, and logins at the console."""

    def __init__(
        self,
        rules: OccupancyRules,
        log_line: Callable[[str], None],
        on_change: Callable[[Occupancy | None], None],
        *,
        is_used: Callable[[], bool] = is_console_used,
        clock: Callable[[], float] = time.monotonic,
        local_time: Callable[[], time.struct_time] = time.localtime,
    ) -> None:
        """Create the watch. `poll` watches.

        Args:
            rules: the operator's rules.
            log_line: writes to the agent's log.
            on_change: called with the present use after each change, None for no use.
            is_used: returns whether somebody is logged in.
            clock: returns seconds of a clock that nobody sets.
            local_time: returns the time in the machine's time zone.
        """
        self._rules = rules
        self._log_line = log_line
        self._on_change = on_change
        self._is_used = is_used
        self._clock = clock
        self._local_time = local_time
        self._due_at = 0.0
        self._console_left_at: float | None = None
        self._reason = ""

    def poll(self) -> None:
        """Look at the hours and the console, unless the last look was within POLL_SECONDS."""
        now = self._clock()
        if now < self._due_at:
            return
        self._due_at = now + POLL_SECONDS
        reason = self._reason_at(now)
        if reason == self._reason:
            return
        self._reason = reason
        self._log_line(
            f"people use this machine: {reason}" if reason else "nobody uses this machine"
        )
        self._on_change(Occupancy(reason, self._rules.running) if reason else None)

    def _reason_at(self, now: float) -> str:
        """Return why the machine belongs to people now. "" if nobody uses it."""
        local = self._local_time()
        minute = local.tm_hour * 60 + local.tm_min
        for hours in self._rules.hours:
            if hours.cover(local.tm_wday, minute):
                return f"hours of people: {hours.text}"
        if not self._rules.watches_console:
            return ""
        if self._is_used():
            self._console_left_at = now
            return AT_CONSOLE
        left_at, minutes = self._console_left_at, self._rules.delay_minutes
        if left_at is not None and now < left_at + 60 * minutes:
            return f"somebody was logged in at the console in the last {minutes} minutes"
        return ""
