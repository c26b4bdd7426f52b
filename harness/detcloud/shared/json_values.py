"""The conversion of training code's values into JSON that the cluster accepts.

JSON has no NaN and no infinities. All written lines contain the texts "NaN", "Infinity" and
"-Infinity" instead.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

from detcloud.shared.articles import with_article
from detcloud.shared.dotted_paths import name_text
from detcloud.shared.errors import DetcloudError
from detcloud.shared.json_depth import JSON_DEPTH_MAX

DIGITS_MAX = 4300
"""The most digits of an integer that Python's JSON parser reads."""
_INTEGER_END = 10**DIGITS_MAX
# Longer integers are shown with six digits.
_WHOLE_INTEGER_MAX = 10**20


def to_python_value(value: object, place: str) -> Any:
    """Convert a tensor, an array or a number of any library into Python numbers and lists.

    Any object with a method `tolist` counts as a tensor, and becomes the result of the method. A
    real number that is neither int nor float becomes a float, as `to_float` converts numbers. Other
    values are returned unchanged: None, bools, complex numbers, and lists with all their items.
    Raise DetcloudError, naming `place`, if `tolist` raises any error.
    """
    if hasattr(value, "tolist"):
        kind = with_article(type(value).__name__)
        try:
            value = value.tolist()
        except Exception as error:
            raise DetcloudError(
                f"{place} is {kind} whose values cannot be read: {error}; report a number"
            ) from error
    if not isinstance(value, int | float | str) and isinstance(value, Real | Decimal):
        return to_float(value)
    return value


def to_float(number: Any) -> float:
    """Convert a real number into a float.

    Return an infinity with the number's sign if the number is too large. Return NaN for a signaling
    NaN, and for a text that is no number. Raise TypeError for None and other types.
    """
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except ValueError:
        # The decimal module raises ValueError for a signaling NaN.
        return math.nan


def to_json_value(value: object, place: str, depth: int = 2) -> Any:
    """Convert a value into JSON: tensors and arrays become numbers and lists, NaN becomes "NaN".

    Infinities become "Infinity" or "-Infinity", and tuples become lists. Numbers that are neither
    int nor float become floats. In text, characters that UTF-8 cannot encode become "?". The value
    itself is not changed. `depth` is the depth of the value in a report line, which itself has
    depth 1. Raise DetcloudError, naming `place` and the keys to the value, for any other type, for
    a list or dict deeper than JSON_DEPTH_MAX, for keys that are no text, and for integers of over
    4300 digits.
    """
    value = to_python_value(value, place)
    if isinstance(value, float):
        return _to_json_float(value)
    if isinstance(value, str):
        return to_json_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _checked_integer(value, place)
    if depth > JSON_DEPTH_MAX and isinstance(value, dict | list | tuple):
        raise DetcloudError(
            f"{place:.80} is nested more than {JSON_DEPTH_MAX} levels deep in the report: report "
            "it flat, or keep it in a checkpoint's files"
        )
    if isinstance(value, dict):
        return to_json_object(value, place, depth)
    if isinstance(value, list | tuple):
        return [
            to_json_value(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)
        ]
    raise DetcloudError(
        f"{place} is {with_article(type(value).__name__)}: only numbers, strings, lists, objects "
        "and tensors can be reported"
    )


def to_json_object(value: dict[str, Any], place: str, depth: int = 1) -> dict[str, Any]:
    """Convert a dict into a new dict of JSON values, as `to_json_value` does.

    NaN and infinities become texts, for example. `depth` is the depth of the dict in a report line;
    only values in it are checked for their depth. Raise DetcloudError, naming `place`, for keys
    that are no text and for values that `to_json_value` refuses.
    """
    for key in value:
        if not isinstance(key, str):
            raise DetcloudError(f"{place} has the key {key!r}: keys must be strings")
    return {
        to_json_text(key): to_json_value(item, f"{place}.{name_text(key)}", depth + 1)
        for key, item in value.items()
    }


def to_json_text(text: str) -> str:
    """Return the text with "?" for each surrogate, which UTF-8 cannot encode.

    Other text is returned unchanged.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode()


def short_text(value: object) -> str:
    """Return the text of a metric's value for a line of the log.

    Floats have six significant digits. Integers are shown fully, or with six significant digits if
    they are above 10^20 or below -10^20. Other values, also booleans, are shown as `str` shows
    them, cut after 80 characters without a mark.
    """
    if isinstance(value, int) and abs(value) > _WHOLE_INTEGER_MAX:
        # An integer that is cut after 80 digits would read as another number.
        return f"{Decimal(value):.6g}"
    return f"{value:.6g}" if isinstance(value, float) else f"{value!s:.80}"


def _checked_integer(value: int, place: str) -> int:
    if not -_INTEGER_END < value < _INTEGER_END:
        raise DetcloudError(
            f"{place} is an integer of more than {DIGITS_MAX} digits: report a float or text"
        )
    return value


def _to_json_float(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
