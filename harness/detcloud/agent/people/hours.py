"""The hours of the week that belong to people, from the option `--people-hours`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""The days of the week, in the order of `time.struct_time.tm_wday`."""
MINUTES_PER_DAY = 24 * 60
_HOURS = re.compile(r"(?:(\S+)\s+)?(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)")


class HoursInvalid(ValueError):
    """A text that names no hours. The message has the expected form."""


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours on days of the week."""

    days: frozenset[int]
    """The days on which the hours begin, each an index of DAYS."""
    begin: int
    """The begin in minutes of the day."""
    end: int
    """The end in minutes of the day. An end that is not after the begin is on the next day."""
    text: str
    """The text of the option, for users."""

    def cover(self, day: int, minute: int) -> bool:
        """Return whether the hours include a minute of a day."""
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        is_evening = day in self.days and minute >= self.begin
        return is_evening or ((day - 1) % 7 in self.days and minute < self.end)


def parse_hours(text: str) -> Hours:
    """Parse hours, for example `mon-fri 09:00-18:00`, `sat,sun 10:00-12:00` or `22:00-06:00`.

    Hours without days are those of every day. Raise HoursInvalid for other texts.
    """
    match = _HOURS.fullmatch(text.strip().lower())
    if match is None:
        raise HoursInvalid(f"must be hours such as 'mon-fri 09:00-18:00', not {text!r}")
    begin, end = _minutes(match[2], match[3]), _minutes(match[4], match[5])
    if not 0 <= begin < MINUTES_PER_DAY or not 0 <= end <= MINUTES_PER_DAY:
        raise HoursInvalid(f"must have times from 00:00 to 24:00, not {text!r}")
    days = frozenset(range(7)) if match[1] is None else _parse_days(match[1])
    return Hours(days, begin, end, " ".join(text.split()))


def _minutes(hour: str, minute: str) -> int:
    """Return the minutes of the day, -1 if the minute is above 59."""
    return int(hour) * 60 + int(minute) if int(minute) < 60 else -1


def _parse_days(text: str) -> frozenset[int]:
    """Parse days, for example `mon-fri` or `sat,sun`. A range may pass the end of the week."""
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise HoursInvalid(f"must name days such as mon-fri or sat,sun, not {text!r}")
        begin = DAYS.index(first)
        count = (DAYS.index(last) - begin) % 7 if dash else 0
        days.update((begin + offset) % 7 for offset in range(count + 1))
    return frozenset(days)
