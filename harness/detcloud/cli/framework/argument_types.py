"""Types of arguments: each turns a word of the command line into a value, or refuses it."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta

DIGITS_MAX = 12
ID_MAX = 10**DIGITS_MAX - 1
SLOTS_MAX = 1024
_AGO = re.compile(r"(\d{1,9})([smhd])")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF-")
_TEAM = re.compile(r"[a-z][a-z0-9-]{0,19}")


def parse_id(text: str) -> int:
    """Parse the id of an experiment, a trial or a token."""
    if not _is_whole_number(text) or not 0 < int(text) <= ID_MAX:
        raise ArgumentTypeError(f"{text!r} is not an id; expected a whole number such as 12")
    return int(text)


def parse_ids(text: str) -> list[int]:
    """Parse ids with commas between them."""
    return [parse_id(part) for part in text.split(",")]


def parse_count(text: str) -> int:
    """Parse a number of things: 0 or more."""
    if not _is_whole_number(text):
        raise ArgumentTypeError(f"{text!r} is not a count; expected a whole number such as 12")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a duration: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; expected a number of seconds greater than 0"
        )
    return value


def parse_moment_ms(text: str) -> int:
    """Parse a moment: ISO 8601, UTC where it names no zone, or how long ago, such as `90m`."""
    if ago := _AGO.fullmatch(text):
        passed = timedelta(**{_AGO_UNITS[ago[2]]: int(ago[1])})
        return int((time.time() - passed.total_seconds()) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; expected a form such as 2026-01-31T12:00:00 or 90m, "
            "12h, 3d ago"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def parse_day(text: str) -> str:
    """Parse a day such as `2026-11-30`."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a day; expected a form such as 2026-11-30"
        ) from None


def parse_boolean(text: str) -> bool:
    """Parse a yes or no."""
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def parse_uuid_prefix(text: str) -> str:
    """Parse a checkpoint's UUID or the beginning of one."""
    if not text or not _HEXADECIMAL.issuperset(text):
        raise ArgumentTypeError(f"{text!r} is not a UUID or the beginning of one")
    return text


def parse_uuid_prefixes(text: str) -> list[str]:
    """Parse UUIDs, or beginnings of some, with commas between them."""
    return [parse_uuid_prefix(part) for part in text.split(",")]


def parse_dollars(text: str) -> float:
    """Parse an amount of dollars, above 0."""
    try:
        dollars = float(text.removeprefix("$"))
    except ValueError:
        dollars = float("nan")
    if not 0 < dollars < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not an amount; expected dollars such as 12.50")
    return dollars


def parse_cost_limit(text: str) -> float | None:
    """Parse an amount of dollars, or `none` for no limit."""
    return None if text.lower() in ("none", "null") else parse_dollars(text)


def parse_priority(text: str) -> int:
    """Parse a priority; the cluster says which are good."""
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is not a priority; expected 1 to 99, 1 being the first")
    return int(text)


def parse_weight(text: str) -> float:
    """Parse a weight for fair share; the cluster says which are good."""
    try:
        weight = float(text)
    except ValueError:
        weight = float("nan")
    if not abs(weight) < float("inf"):
        raise ArgumentTypeError(
            f"{text!r} is not a weight; expected a number greater than 0, such as 2"
        )
    return weight


def parse_slots(text: str) -> int:
    """Parse how many slots a machine has."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= SLOTS_MAX:
        raise ArgumentTypeError(f"{text!r} is not a number of slots; expected 1 to {SLOTS_MAX}")
    return int(text)


def parse_slot_limit(text: str) -> int | None:
    """Parse how many slots an experiment may have, or `none` for no limit."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return parse_count(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is not a number of slots; expected a number such as 8, or none"
        ) from None


def parse_port(text: str) -> int:
    """Parse a TCP port."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port; expected 1 to 65535")
    return int(text)


def parse_override(text: str) -> str:
    """Check that a field of a configuration and its value are `KEY=VALUE`."""
    if "=" not in text or text.startswith("="):
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE, such as max_restarts=2")
    return text


def parse_team(text: str) -> str:
    """Check the name of a team whose cluster is deployed."""
    if not _TEAM.fullmatch(text):
        raise ArgumentTypeError(
            f"{text!r} is not a team name; expected 1 to 20 lowercase letters, digits and hyphens"
        )
    return text


def _is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
