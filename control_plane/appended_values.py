"""Values that a newer version appended to a tuple in a stored record.

A tuple is stored as a list of fixed length. A newer version may append values to the list, for
example for a new field of a named tuple. This version ignores the appended values; a rewrite by
this version drops them.
"""

from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter, ValidationError


def validate_without_appended(adapter: TypeAdapter[Any], value: object) -> Any:
    """Validate decoded JSON, ignoring values that a newer version appended to tuples.

    `value` is not changed. Raises ValidationError for any other error.
    """
    shortened = None
    while True:
        try:
            return adapter.validate_python(value if shortened is None else shortened)
        except ValidationError as error:
            shortened = deepcopy(value) if shortened is None else shortened
            if not _cut_appended(shortened, error):
                raise


def _cut_appended(value: object, error: ValidationError) -> bool:
    """Shorten the lists that are too long by the validation's errors.

    Return whether every error was a list in `value` that is now shorter.
    """
    for detail in error.errors(include_url=False, include_input=False):
        if detail["type"] != "too_long":
            return False
        too_long = _find_value(value, detail["loc"])
        length = detail["ctx"]["max_length"]
        if not isinstance(too_long, list) or len(too_long) <= length:
            return False
        del too_long[length:]
    return True


def _find_value(value: object, path: tuple[int | str, ...]) -> object:
    """Return the value at a path of names and positions. Return None if the path does not exist."""
    found: Any = value
    for step in path:
        try:
            found = found[step]
        except (LookupError, TypeError):
            return None
    return found
