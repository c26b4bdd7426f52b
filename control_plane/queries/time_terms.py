"""Times in filters: days like `2026-11-01`, and ages like `7d`."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from control_plane.queries.filter_text import FilterInvalid, Operator, Value

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_AGE: Final = re.compile(r"([0-9]{1,5})([mhdw])")
_UNIT_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DAY_MS: Final = _UNIT_MS["d"]


def parse_time_range(value: Value, operator: Operator, key: str, now_ms: int) -> range:
    """Return the milliseconds that a comparison compares with: a whole day of UTC, or a moment.

    Args:
        value: a day as YYYY-MM-DD, or an age: a number and m, h, d or w.
        operator: the comparison. Only a day can be equal to a time.
        key: the key of the term, for the message.
        now_ms: the present time in epoch ms, from which ages count.

    Raises:
        FilterInvalid: the value is neither a day nor an age, or an age follows `:` or `=`.
    """
    if found := _AGE.fullmatch(value.text):
        if operator == "=":
            expected = f"< or > before an age, as in {key}>7d for the last week"
            raise FilterInvalid(value.place, value.text, expected)
        moment = now_ms - int(found[1]) * _UNIT_MS[found[2]]
        return range(moment, moment + 1)
    try:
        if not _DAY.fullmatch(value.text):
            raise ValueError(value.text)
        day = datetime.fromisoformat(value.text).replace(tzinfo=UTC)
    except ValueError:
        expected = f"a day or an age (m, h, d, w), as in {key}>=2026-11-01 or {key}>7d"
        raise FilterInvalid(value.place, value.text, expected) from None
    start = (day - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return range(start, start + _DAY_MS)


def is_time_met(time_ms: int | None, operator: Operator, compared: range) -> bool:
    """Return whether a time fits a comparison with a day or a moment. None never fits."""
    if time_ms is None:
        return False
    match operator:
        case "<":
            return time_ms < compared.start
        case "<=":
            return time_ms < compared.stop
        case ">":
            return time_ms >= compared.stop
        case ">=":
            return time_ms >= compared.start
    return time_ms in compared
