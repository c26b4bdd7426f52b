"""The gate for JSON from outside the cluster: the checks before a value is stored in a row.

Every parser and encoder of the cluster has its own limits. pydantic's parser ends at 200 levels,
its encoder at 255, and `json` at the depth of Python's stack. A stored row that only some parsers
can read would break every list and every command that reads the row. The gate's limits are below
the limits of all parsers, encoders and state tables.

- `parse_body` parses requests. A fault refuses the request and names the place of the fault.
- `storable_line` checks single lines of trials. A faulty line is dropped, because refusing the call
  would hold up all lines of the call.
- `readable` repairs values of rows that an older version stored.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from control_plane.findings import Loc, path_text
from control_plane.storable_text import TEXT_FAULT, is_storable_text
from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep

# The maximum depth of a request. The limit for stored values is lower, because a request nests a
# value inside a few fields, such as `operations[0].hparams`.
BODY_DEPTH_MAX: Final = JSON_DEPTH_MAX + 8
# The largest accepted integer: the largest float, because readers in other languages convert
# integers to floats.
NUMBER_MAX: Final = int(sys.float_info.max)
_DIGITS_MAX: Final = len(str(NUMBER_MAX))
PLACE_CHARACTERS_MAX: Final = 200
REPLACEMENT: Final = "\ufffd"

DEPTH_TEXT: Final = f"is nested more than {JSON_DEPTH_MAX} levels deep"
_BODY_DEPTH_TEXT: Final = f"is nested more than {BODY_DEPTH_MAX} levels deep"
_NUMBER_FAULT: Final = "must be a finite number, not NaN or an infinity"
_INTEGER_FAULT: Final = f"is an integer of more than {_DIGITS_MAX - 1} digits"

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
# Matches every JSON text that contains a refused text or number, and some others. A number without
# these exponents and with fewer digits is finite.
_SUSPICIOUS: Final = re.compile(
    r"\\u(?:[dD][89a-fA-F]|0000)|NaN|Infinity|[0-9]{200}|[0-9][eE]\+?[0-9]{3}"
)


class JsonRefused(ValueError):
    """The gate refuses a JSON value.

    Args:
        place: the path of the fault, or "" for the whole value.
        message: the fault.
    """

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place
        self.message = message


class _ObjectWithRepetition(dict[str, Any]):
    """A parsed object with a key that the JSON text contains twice."""

    repeated: str = ""
    """The first repeated key."""


def parse_body(content: bytes) -> Any:
    """Parse the body of a request.

    Raises:
        JsonRefused: the body is not UTF-8, is nested too deep, or has a key twice. Or a text has a
            NUL character or half of a surrogate pair. Or a number is NaN, infinite or beyond every
            float.
        json.JSONDecodeError: the body is not JSON.
    """
    text = _decode(content)
    value = _load(text, _unique_object)
    if is_too_deep(value, BODY_DEPTH_MAX):
        raise JsonRefused(_deep_place(value, BODY_DEPTH_MAX), _BODY_DEPTH_TEXT)
    if _SUSPICIOUS.search(text) or _has_repetition(value):
        check_value(value, BODY_DEPTH_MAX)
    return value


def parse_agent_body(content: bytes) -> Any:
    """Parse the body of an agent's request, without checking the values.

    `storable_line` checks each line of the body later.

    Raises:
        JsonRefused: the body is not UTF-8, or is nested deeper than Python's stack.
        json.JSONDecodeError: the body is not JSON.
    """
    return _load(_decode(content), None)


def check_value(value: object, depth_max: int = JSON_DEPTH_MAX, at: Loc = ()) -> None:
    """Raise JsonRefused for a fault in a JSON value. Return without faults.

    Faults in texts and keys are NUL characters and halves of surrogate pairs. Faulty numbers are
    not finite, or are integers beyond NUMBER_MAX. A repeated key and too deep nesting are faults,
    too.

    Args:
        value: the parsed value.
        depth_max: the maximum nesting of objects and lists.
        at: the path of the value in the request, for the error.
    """
    for loc, child in _values(value, at, depth_max):
        if fault := _fault_text(child):
            raise JsonRefused(place_text(loc), fault)


def check_size(value: object, bytes_max: int, place: str = "") -> None:
    """Raise JsonRefused if the JSON of a value has more than `bytes_max` bytes.

    `check_value` must have accepted the value. `place` is the path of the value in the error.
    """
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > bytes_max:
        raise JsonRefused(place, f"has {size} bytes as JSON; the limit is {bytes_max}")


def storable_line(line: dict[str, Any], bytes_max: int) -> tuple[dict[str, Any], int]:
    """Return a trial's line in a form that a row can store, and the size as JSON in bytes.

    NaN, infinities and integers beyond every float become the texts `NaN`, `Infinity` and
    `-Infinity`. NUL characters become U+FFFD.

    Raises:
        JsonRefused: the line is too deep or too long, or contains half of a surrogate pair.
    """
    # Imported here because searchers use this module and must not import pydantic.
    from pydantic_core import PydanticSerializationError, to_json

    if is_too_deep(line):
        raise JsonRefused("", DEPTH_TEXT)
    try:
        encoded = to_json(line, inf_nan_mode="strings")
    except PydanticSerializationError:
        raise JsonRefused("", "contains half of a surrogate pair") from None
    if _SUSPICIOUS.search(encoded.decode()):
        line = _storable_copy(line)
        encoded = to_json(line)
    if len(encoded) > bytes_max:
        raise JsonRefused("", f"has {len(encoded)} bytes, the limit is {bytes_max}")
    return line, len(encoded)


def parse_stored(content: bytes) -> Any:
    """Parse JSON that an older version stored, at any depth that versions could write.

    Raises ValueError for invalid JSON, and for JSON that is deeper than Python's stack.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("is nested deeper than any version stored") from None


def parse_stored_object(content: bytes) -> dict[str, Any]:
    """Parse a stored JSON object from a trial's line. Return {} for content of another form."""
    try:
        value = parse_stored(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def readable(value: Any) -> tuple[Any, str]:
    """Return a stored JSON value for an answer, and a description of the damage or "".

    A value without damage is returned itself. A value with damage is copied. In the copy,
    containers below 64 levels are null, and bad characters are U+FFFD. Numbers that are not finite
    or too large are the texts `NaN`, `Infinity` or `-Infinity`.
    """
    if not is_too_deep(value) and not _SUSPICIOUS.search(json.dumps(value)):
        return value, ""
    try:
        check_value(value)
    except JsonRefused as refused:
        return _storable_copy(value, JSON_DEPTH_MAX), str(refused)
    return value, ""


def place_text(loc: Loc) -> str:
    """Return a path as text, for example `operations[0].hparams`.

    NUL characters and halves of surrogate pairs become U+FFFD. Text of more than
    PLACE_CHARACTERS_MAX characters is cut and ends with three dots.
    """
    text = path_text(loc)
    text = _SURROGATES.sub(REPLACEMENT, text).replace("\0", REPLACEMENT)
    if len(text) <= PLACE_CHARACTERS_MAX:
        return text
    return f"{text[:PLACE_CHARACTERS_MAX]}..."


def _decode(content: bytes) -> str:
    """Decode the UTF-8 of a body. Raises JsonRefused for other bytes."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise JsonRefused("", f"the body is not UTF-8 at byte {error.start}") from None


def _load(text: str, make_object: Any) -> Any:
    """Parse JSON. Integers with too many digits become integers beyond NUMBER_MAX.

    Args:
        make_object: builds an object from a list of pairs. None builds a dict.

    Raises:
        JsonRefused: the text is nested deeper than Python's stack.
        json.JSONDecodeError: the text is not JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=make_object)
    except RecursionError:
        raise JsonRefused("", "the body is nested too deep to be read") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        # `int` refuses an integer with this many digits.
        return json.loads(text, object_pairs_hook=make_object, parse_int=_parse_integer)


def _parse_integer(text: str) -> int:
    """Parse an integer. Return a value beyond NUMBER_MAX for a very long integer."""
    if len(text) <= _DIGITS_MAX + 1:
        return int(text)
    return -(NUMBER_MAX + 1) if text.startswith("-") else NUMBER_MAX + 1


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from pairs, with the last value of a repeated key.

    For a repeated key, the object is an _ObjectWithRepetition that names the first repeated key.
    """
    content = dict(pairs)
    if len(content) == len(pairs):
        return content
    seen = set[str]()
    repeating = _ObjectWithRepetition(content)
    for key, _ in pairs:
        if key in seen:
            repeating.repeated = key
            break
        seen.add(key)
    return repeating


def _has_repetition(value: object) -> bool:
    """Return whether a value contains an object with a repeated key."""
    level = [value]
    while level := [container for container in level if isinstance(container, dict | list)]:
        if any(isinstance(container, _ObjectWithRepetition) for container in level):
            return True
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
        ]
    return False


def _values(value: object, loc: Loc, depth_left: int) -> Iterator[tuple[Loc, object]]:
    """Yield the value, all values inside, and the keys of objects, each with a path.

    Paths begin with `loc`. A key has the path of the key's value. Raises JsonRefused at a container
    that is nested more than `depth_left` levels deep.
    """
    pending: list[tuple[Loc, object, int]] = [(loc, value, depth_left)]
    while pending:
        place, current, levels_left = pending.pop()
        yield place, current
        if not isinstance(current, dict | list | tuple):
            continue
        if levels_left <= 0:
            raise JsonRefused(place_text(place), _depth_text(depth_left))
        if isinstance(current, dict):
            for key in current:
                yield (*place, f"{key}"), key
            pending += [
                ((*place, f"{key}"), child, levels_left - 1) for key, child in current.items()
            ]
        else:
            pending += [((*place, n), child, levels_left - 1) for n, child in enumerate(current)]


def _depth_text(depth_max: int) -> str:
    """Return the message for a value that is nested more than `depth_max` levels deep."""
    return f"is nested more than {depth_max} levels deep"


def _deep_place(value: object, depth_max: int) -> str:
    """Return the path of a container more than `depth_max` levels deep.

    Return "" if all containers are less deep.
    """
    try:
        for _ in _values(value, (), depth_max):
            pass
    except JsonRefused as refused:
        return refused.place
    return ""


def _fault_text(value: object) -> str:
    """Return the fault of a single value, or "". Values inside a container are not checked."""
    match value:
        case str():
            return "" if is_storable_text(value) else TEXT_FAULT
        case bool() | None:
            return ""
        case int():
            return "" if abs(value) <= NUMBER_MAX else _INTEGER_FAULT
        case float():
            return "" if math.isfinite(value) else _NUMBER_FAULT
        case _ObjectWithRepetition():
            key = place_text((value.repeated,))
            return f"has the key {key} twice"
    return ""


def _storable_copy(value: Any, depth_left: int = sys.maxsize) -> Any:
    """Return a copy of a value that can be stored.

    NUL characters and halves of surrogate pairs become U+FFFD. Numbers become texts as in
    `_number_or_text`. Keys become texts, tuples become lists, and containers below `depth_left`
    levels become None.
    """
    match value:
        case str():
            return _SURROGATES.sub(REPLACEMENT, value).replace("\0", REPLACEMENT)
        case bool():
            return value
        case int() | float():
            return _number_or_text(value)
        case dict():
            if depth_left <= 0:
                return None
            return {
                _storable_copy(str(key)): _storable_copy(child, depth_left - 1)
                for key, child in value.items()
            }
        case list() | tuple():
            if depth_left <= 0:
                return None
            return [_storable_copy(child, depth_left - 1) for child in value]
    return value


def _number_or_text(value: float) -> float | str:
    """Return a number within the range of floats unchanged.

    Return the text `NaN`, `Infinity` or `-Infinity` for other numbers.
    """
    if isinstance(value, int):
        if abs(value) <= NUMBER_MAX:
            return value
        return "Infinity" if value > 0 else "-Infinity"
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
