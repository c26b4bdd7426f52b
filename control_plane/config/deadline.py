"""Deadlines of experiments as configurations write them: a moment with its zone, or a duration."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EXPECTED: Final = "a duration like '6h', '90m' or '2d', or a time with its zone"
SPAN_MS_MAX: Final = 3650 * 86_400_000

_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(s|m|h|d)\Z")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def span_ms(text: str) -> int | None:
    """Parse the milliseconds of a duration; None for anything else, such as a moment.

    Raises:
        ValueError: for one that is 0 or longer than ten years.
    """
    match = _SPAN.match(text.strip())
    if match is None:
        return None
    span = round(float(match[1]) * _UNIT_MS[match[2]])
    if not 0 < span <= SPAN_MS_MAX:
        raise ValueError("must be longer than 0 and at most 3650d")
    return span


def deadline_ms(text: str, submitted_ms: int) -> int:
    """Parse a deadline, in milliseconds since 1970, of an experiment submitted at a moment.

    Raises:
        ValueError: unless `text` is a duration or an ISO 8601 time with its zone.
    """
    if (span := span_ms(text)) is not None:
        return submitted_ms + span
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"must be {EXPECTED} like '2027-01-31T18:00:00+01:00'") from None
    if moment.tzinfo is None:
        raise ValueError("must include a time zone, as in '2027-01-31T18:00:00Z' or with '+01:00'")
    try:
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError:
        raise ValueError("must be within the years 1970 to 9999") from None
