"""Sizes in bytes in configurations, for example 4096 and 1.5 gb."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from control_plane.config.section import refuse
from control_plane.field_types import COUNT_MAX
from control_plane.findings import value_text

_SIZE: Final = re.compile(
    r"(\d{1,15}(?:\.\d{1,9})?|\.\d{1,9})\s*([kmgtp]?)(?:i?b)?\Z", re.IGNORECASE
)
_POWERS: Final = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p"))}


def _parse_size(value: object) -> object:
    """Convert a text like "1.5 gb" to bytes, rounded down. Return other values unchanged.

    The units are powers of 1024, up to "pb". Raise PydanticCustomError for a text of another form.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        refuse(f"must be a number of bytes or a size like '1.5 gb', not {value_text(value)}")
    return int(float(match[1]) * _POWERS[match[2].lower()])


SizeBytes = Annotated[
    Annotated[int, Field(ge=0, le=COUNT_MAX)] | None, BeforeValidator(_parse_size)
]
"""A size in bytes, or None. Configurations contain a number, or a text such as 1.5 gb."""
