"""Deadlines of experiments in configurations: a time with a zone, or a duration."""

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
    """Parse a duration in a single unit, like "90m" or "1.5h", and return the milliseconds.

    Return None for any other text, such as a time or "1h30m".

    Raises:
        ValueError: the duration is 0 or longer than 3650 days.
    """
    match = _SPAN.match(text.strip())
    if match is None:
        return None
    span = round(float(match[1]) * _UNIT_MS[match[2]])
    if not 0 < span <= SPAN_MS_MAX:
        raise ValueError("must be longer than 0 and at most 3650d")
    return span


def deadline_ms(text: str, submitted_ms: int) -> int:
    """Parse a deadline and return epoch ms. A deadline in the past is accepted.

    Args:
        text: a duration from the submission such as "6h", or an ISO 8601 time with a zone.
        submitted_ms: the time of the submission, in epoch ms.

    Raises:
        ValueError: the text has another form, the duration is 0 or longer than 3650 days, or the
            time is out of range.
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
