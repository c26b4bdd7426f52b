"""Types of command-line arguments for argparse.

Each function parses one word. All functions raise ArgumentTypeError for a word without a valid
value.
"""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta

DIGITS_MAX = 12
ID_MAX = 10**DIGITS_MAX - 1
SLOTS_MAX = 1024
DURATION_LIMIT = 1_000_000
_AGO = re.compile(r"(\d{1,9})([smhd])")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF-")
_TEAM = re.compile(r"[a-z][a-z0-9-]{0,19}")


def parse_id(text: str) -> int:
    """Parse the id of an experiment, a trial, a run or a token: a whole number from 1 to ID_MAX.
    Leading zeros are accepted within DIGITS_MAX digits.

    Raises:
        ArgumentTypeError: the text is not a number of this range, or has a sign or blanks.
    """
    if not _is_whole_number(text) or not 0 < int(text) <= ID_MAX:
        raise ArgumentTypeError(f"{text!r} is not an id; expected a whole number such as 12")
    return int(text)


def parse_ids(text: str) -> list[int]:
    """Parse ids separated by commas, for example `1,2`. Order and repetitions are kept.

    Raises:
        ArgumentTypeError: a part is empty, has blanks or is not an id.
    """
    return [parse_id(part) for part in text.split(",")]


def parse_count(text: str) -> int:
    """Parse a whole number from 0 to ID_MAX, of at most DIGITS_MAX digits, without a sign.

    Raises:
        ArgumentTypeError: the text is not a number of this range, or has a sign or blanks.
    """
    if not _is_whole_number(text):
        raise ArgumentTypeError(f"{text!r} is not a count; expected a whole number such as 12")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a number of seconds above 0 and below DURATION_LIMIT, a million. Fractions are
    accepted.

    Raises:
        ArgumentTypeError: the text is not a number of this range.
    """
    return _parse_duration(text, "seconds")


def parse_hours(text: str) -> float:
    """Parse a number of hours above 0 and below DURATION_LIMIT, a million. Fractions are accepted,
    and the result is in hours too.

    Raises:
        ArgumentTypeError: the text is not a number of this range.
    """
    return _parse_duration(text, "hours")


def parse_moment_ms(text: str) -> int:
    """Parse a time, and return epoch milliseconds.

    The word is a date or time of ISO 8601, or an age in whole units, such as `90m`. A time without
    a zone is in UTC. An age is subtracted from the current time. The units of an age are s, m, h
    and d.

    Raises:
        ArgumentTypeError: the text has neither form.
    """
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


def parse_minutes(text: str) -> int:
    """Parse a time of at least a minute in whole units m, h or d, such as `90m`; return minutes.

    Raises:
        ArgumentTypeError: the text has another form, or the time is 0.
    """
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a time; expected a form such as 30m, 2h or 7d")
    return int(match[1]) * {"m": 1, "h": 60, "d": 24 * 60}[match[2]]


def parse_day(text: str) -> str:
    """Parse a date of ISO 8601, for example `20261130`, and return the form `2026-11-30`.

    Raises:
        ArgumentTypeError: the text is not a date.
    """
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a day; expected a form such as 2026-11-30"
        ) from None


def parse_boolean(text: str) -> bool:
    """Parse true, yes and 1 as True, and false, no and 0 as False, in upper or lower case.

    Raises:
        ArgumentTypeError: the text is another word.
    """
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in values:
        raise ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def parse_uuid_prefix(text: str) -> str:
    """Return a checkpoint's UUID, or the beginning of a UUID, unchanged.

    The function checks only that all characters are hexadecimal digits or hyphens.

    Raises:
        ArgumentTypeError: the text is empty or has another character.
    """
    if not text or not _HEXADECIMAL.issuperset(text):
        raise ArgumentTypeError(f"{text!r} is not a UUID or the beginning of one")
    return text


def parse_uuid_prefixes(text: str) -> list[str]:
    """Parse UUIDs, or beginnings of UUIDs, separated by commas. Order and repetitions are kept.

    Raises:
        ArgumentTypeError: a part is empty or is not the beginning of a UUID.
    """
    return [parse_uuid_prefix(part) for part in text.split(",")]


def parse_dollars(text: str) -> float:
    """Parse a finite amount of dollars above 0, with or without a leading `$`, for example
    `$12.50`.

    Raises:
        ArgumentTypeError: the text is not a finite amount above 0.
    """
    try:
        dollars = float(text.removeprefix("$"))
    except ValueError:
        dollars = float("nan")
    if not 0 < dollars < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not an amount; expected dollars such as 12.50")
    return dollars


def parse_cost_limit(text: str) -> float | None:
    """Parse an amount of dollars above 0, with or without a leading `$`. Return None, for no limit,
    if the text is `none` or `null` in upper or lower case.

    Raises:
        ArgumentTypeError: the text is neither an amount nor one of the two words.
    """
    return None if text.lower() in ("none", "null") else parse_dollars(text)


def parse_priority(text: str) -> int:
    """Parse an integer of at most nine digits, which may be negative. The cluster checks the range
    of priorities, 1 to 99.

    Raises:
        ArgumentTypeError: the text is not an integer of this length.
    """
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is not a priority; expected 1 to 99, 1 being the first")
    return int(text)


def parse_weight(text: str) -> float:
    """Parse a finite number as a fair-share weight. Zero and negative numbers are accepted here,
    because the cluster checks the range.

    Raises:
        ArgumentTypeError: the text is not a finite number.
    """
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
    """Parse the number of slots of a machine: 1 to SLOTS_MAX. A sign and blanks are not accepted.

    Raises:
        ArgumentTypeError: the text is not a whole number of this range.
    """
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= SLOTS_MAX:
        raise ArgumentTypeError(f"{text!r} is not a number of slots; expected 1 to {SLOTS_MAX}")
    return int(text)


def parse_slot_limit(text: str) -> int | None:
    """Parse the most slots of an experiment, 0 to ID_MAX. Return None, for no limit, if the text is
    `none` or `null` in upper or lower case.

    Raises:
        ArgumentTypeError: the text is neither a whole number nor one of the two words.
    """
    if text.lower() in ("none", "null"):
        return None
    try:
        return parse_count(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text!r} is not a number of slots; expected a number such as 8, or none"
        ) from None


def parse_port(text: str) -> int:
    """Parse a TCP port: 1 to 65535. A sign and blanks are not accepted.

    Raises:
        ArgumentTypeError: the text is not a whole number of this range.
    """
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port; expected 1 to 65535")
    return int(text)


def parse_override(text: str) -> str:
    """Return a configuration override of the form KEY=VALUE unchanged. The key and the value are
    not checked; VALUE may be empty.

    Raises:
        ArgumentTypeError: the text has no `=`, or the key is empty.
    """
    if "=" not in text or text.startswith("="):
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE, such as max_restarts=2")
    return text


def parse_team(text: str) -> str:
    """Return the name of a team unchanged: a lowercase letter, then at most 19 lowercase letters,
    digits and hyphens.

    Raises:
        ArgumentTypeError: the text has another form.
    """
    if not _TEAM.fullmatch(text):
        raise ArgumentTypeError(
            f"{text!r} is not a team name; expected 1 to 20 lowercase letters, digits and hyphens"
        )
    return text


def _parse_duration(text: str, unit: str) -> float:
    """Parse a number above 0 and below DURATION_LIMIT.

    Args:
        unit: the unit that the error message names.

    Raises:
        ArgumentTypeError: the text is not a number of this range.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < DURATION_LIMIT:
        raise ArgumentTypeError(
            f"{text!r} is not a duration; expected a number of {unit} greater than 0 and less than "
            f"{DURATION_LIMIT}"
        )
    return value


def _is_whole_number(text: str) -> bool:
    """Return whether a text has only ASCII digits, at least one and at most DIGITS_MAX."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
