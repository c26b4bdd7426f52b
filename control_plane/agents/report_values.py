"""The values in agents' reports, which training code may have written in any form."""

import math
import re
from typing import TypeGuard

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether the value is an integer that a float represents exactly, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def parse_text(value: object, characters_max: int) -> str:
    """Return at most `characters_max` characters of a text, or "" for another type."""
    return value[:characters_max] if isinstance(value, str) else ""


def parse_fingerprint(value: object) -> str:
    """Return a fingerprint of hexadecimal digits, or "" for any other value."""
    return value if isinstance(value, str) and _FINGERPRINT.fullmatch(value) else ""


def parse_count(value: object) -> int:
    """Return a non-negative integer below 2^53. Raises ValueError for other values, booleans
    included.
    """
    if not is_whole(value) or value < 0:
        raise ValueError(value)
    return value


def parse_metric(value: object) -> float | None:
    """Parse the value of a metric. Return None for a value that is not finite.

    The texts "NaN", "Infinity" and "-Infinity", and integers beyond the range of floats are not
    finite. Raises ValueError for booleans, other types, and the floats NaN and infinity.
    """
    if value in ("NaN", "Infinity", "-Infinity"):
        return None
    try:
        return parse_number(value)
    except OverflowError:
        return None


def parse_number(value: object) -> float:
    """Return a finite number as a float.

    Raises ValueError for booleans, NaN, infinities and other types. Raises OverflowError for
    integers beyond the range of floats.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def parse_pattern(pattern: re.Pattern[str], value: object) -> str:
    """Return a text that matches the whole pattern. Raises ValueError for other values and
    types.
    """
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(value)
    return value
