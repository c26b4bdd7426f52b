"""Durations in configurations, for example 20m, 1h30m and 500ms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from control_plane.config.section import refuse
from control_plane.field_types import COUNT_MAX
from control_plane.findings import value_text

UNITS_MS: Final[Mapping[str, int]] = MappingProxyType(
    {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
)
_PIECE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|d|h|m|s)")
_WHOLE: Final = re.compile(rf"(?:{_PIECE.pattern})+\Z")


def duration_text(time_ms: int) -> str:
    """Return a time of at least 0 ms as a text: 5_400_000 becomes "1h30m", and 0 becomes "0s"."""
    text = ""
    for unit, unit_ms in UNITS_MS.items():
        count, time_ms = divmod(time_ms, unit_ms)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _parse_milliseconds(value: object) -> object:
    """Convert a text like 20m, or a number of seconds, to whole milliseconds, rounded down.

    Raise PydanticCustomError for any other value, for negative numbers, and for times of more than
    COUNT_MAX ms.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        refuse(f"must be a duration such as 20m, not {value_text(value)}")
    if isinstance(value, str):
        text = value.strip()
        if not _WHOLE.match(text):
            refuse(f"must be a duration such as 20m, 1h30m or 90s, not {value_text(value)}")
        total_ms = sum(float(count) * UNITS_MS[unit] for count, unit in _PIECE.findall(text))
    else:
        total_ms = value * 1_000
    if not 0 <= total_ms <= COUNT_MAX:
        refuse(f"must be at least 0 and less than 285,000 years, not {value_text(value)}")
    return int(total_ms)


def find_duration_ms(text: str) -> int | None:
    """Return the milliseconds of a text like 24h. Return None for any other text."""
    if not _WHOLE.match(text.strip()):
        return None
    return int(sum(float(count) * UNITS_MS[unit] for count, unit in _PIECE.findall(text)))


def _check_positive(time_ms: int) -> int:
    if not time_ms:
        refuse("must be longer than 0")
    return time_ms


Duration = Annotated[int, BeforeValidator(_parse_milliseconds), PlainSerializer(duration_text)]
"""A time in milliseconds. Configurations contain a text such as 20m, or a number of seconds.
Shown as a text.
"""
PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]
"""A duration above 0."""
