"""The section `quiet_hours` of resource pools: the times of the week at which no work starts.

The section only checks the forms of the fields. `control_plane/quiet_times.py` reads the time
zone, because time zones are files of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from control_plane.config.section import Section, refuse, refuse_at
from control_plane.findings import value_text
from control_plane.scheduling.quiet_hours import DAYS, QuietHours

SECTION: Final = "quiet_hours"
RULES_MAX: Final = 10
MINUTES_PER_DAY: Final = 24 * 60
_TIME: Final = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)\Z")


def _parse_time(value: object) -> object:
    """Convert a time of the day, for example `22:00`, to minutes. `24:00` is the end of the day.

    YAML reads `22:00` without quotes as a number in base 60, which is the number of minutes.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MINUTES_PER_DAY:
        return value
    match = _TIME.match(value.strip()) if isinstance(value, str) else None
    minutes = -1 if match is None else int(match[1]) * 60 + int(match[2])
    if not 0 <= minutes <= MINUTES_PER_DAY:
        refuse(f'must be a time of the day such as "22:00", not {value_text(value)}')
    return minutes


def clock_text(minutes: int) -> str:
    """Return minutes of the day as a time of the day, for example `22:00`."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


ClockTime = Annotated[int, BeforeValidator(_parse_time), PlainSerializer(clock_text)]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class QuietHoursRule(Section):
    """Quiet hours of a pool on days of the week."""

    days: Annotated[tuple[Day, ...], Field(strict=False, max_length=7)] = (
        "mon",
        "tue",
        "wed",
        "thu",
        "fri",
        "sat",
        "sun",
    )
    """The days on which the quiet hours begin: `mon`, `tue`, `wed`, `thu`, `fri`, `sat`, `sun`."""
    begin: ClockTime = 0
    """The begin, for example `"22:00"`."""
    end: ClockTime = MINUTES_PER_DAY
    """The end, for example `"06:00"`. An end that is not after the begin is on the next day."""
    time_zone: Annotated[str, MinLen(1), MaxLen(64)] = "UTC"
    """The time zone of the times, for example `Europe/Berlin`."""
    running: Literal["finish", "checkpoint"] = "finish"
    """The rule for running work. `finish`: it continues. `checkpoint`: trials save a checkpoint,
    release their slots, and continue after the quiet hours. Commands, notebooks and shells always
    continue.
    """
    urgent_priority: Annotated[int, Ge(1), Le(99)] | None = None
    """The priority up to which jobs start and run in spite of the quiet hours; 1 is the most
    important. If absent, no job starts.
    """

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if not self.days:
            refuse_at(("days",), "must not be empty", "leave it out for every day")
        if self.begin == MINUTES_PER_DAY:
            refuse_at(("begin",), "must be before 24:00", "use 00:00 of the next day")
        return self


def quiet_rules(rules: Sequence[QuietHoursRule]) -> tuple[QuietHours, ...]:
    """Return the rules of a section for the pool actor."""
    return tuple(
        QuietHours(
            days=tuple(sorted({DAYS.index(day) for day in rule.days})),
            begin=rule.begin,
            end=rule.end,
            time_zone=rule.time_zone,
            checkpoints=rule.running == "checkpoint",
            urgent_priority=rule.urgent_priority,
        )
        for rule in rules
    )
