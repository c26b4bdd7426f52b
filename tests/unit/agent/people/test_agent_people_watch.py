"""The watch over the use of the machine by people."""

from __future__ import annotations

import time

from detcloud.agent.people.hours import parse_hours
from detcloud.agent.people.people_watch import (
    AT_CONSOLE,
    POLL_SECONDS,
    Occupancy,
    OccupancyRules,
    OccupancyWatch,
)


class Machine:
    """A machine with a clock, a time of the week and a console."""

    def __init__(self, rules: OccupancyRules) -> None:
        self.now = 1000.0
        self.local = "2026-11-30 08:59"
        self.is_used = False
        self.reports: list[Occupancy | None] = []
        self.lines: list[str] = []
        self.watch = OccupancyWatch(
            rules,
            self.lines.append,
            self.reports.append,
            is_used=lambda: self.is_used,
            clock=lambda: self.now,
            local_time=lambda: time.strptime(self.local, "%Y-%m-%d %H:%M"),
        )

    def poll(self, seconds: float = POLL_SECONDS) -> list[Occupancy | None]:
        """Let time pass and poll. Return the new reports."""
        self.now += seconds
        before = len(self.reports)
        self.watch.poll()
        return self.reports[before:]


CONSOLE = OccupancyRules(watches_console=True, delay_minutes=10, running="finish")


def test_hours_begin_and_end() -> None:
    # A Monday.
    desk = Machine(OccupancyRules((parse_hours("mon-fri 09:00-18:00"),)))
    assert desk.poll() == []
    desk.local = "2026-11-30 09:00"
    reason = "hours of people: mon-fri 09:00-18:00"
    assert desk.poll() == [Occupancy(reason, "checkpoint")]
    assert desk.poll() == []
    desk.local = "2026-11-30 18:00"
    assert desk.poll() == [None]
    assert desk.lines == [f"people use this machine: {reason}", "nobody uses this machine"]


def test_login_counts_at_once_and_for_a_while_after_the_logout() -> None:
    desk = Machine(CONSOLE)
    desk.is_used = True
    assert desk.poll() == [Occupancy(AT_CONSOLE, "finish")]
    desk.poll(3600)
    desk.is_used = False
    (left,) = desk.poll()
    assert left is not None
    assert left.reason.endswith("in the last 10 minutes")
    # The watch saw somebody POLL_SECONDS before.
    assert desk.poll(600 - 2 * POLL_SECONDS) == []
    assert desk.poll() == [None]


def test_login_within_the_delay_continues_the_use() -> None:
    desk = Machine(CONSOLE)
    for desk.is_used in (True, False, True):
        (report,) = desk.poll()
        assert report is not None
    desk.is_used = False
    assert desk.poll(599)[-1] is not None


def test_console_is_not_read_without_the_rule() -> None:
    desk = Machine(OccupancyRules((parse_hours("tue 09:00-18:00"),)))
    desk.is_used = True
    assert desk.poll() == []


def test_polls_are_rare() -> None:
    desk = Machine(CONSOLE)
    desk.poll()
    desk.is_used = True
    assert desk.poll(POLL_SECONDS / 2) == []
