"""The base class of Determined's `experimental` objects, and the orders of lists."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar


class OrderBy(Enum):
    """The order of a list."""

    ASC = ASCENDING = "asc"
    DESC = DESCENDING = "desc"


def is_ascending(order: Any) -> bool:
    """Return whether an order is ascending. None is not. All of Determined's enums are accepted."""
    return bool(order is not None and order.value == OrderBy.ASC.value)


class Handle:
    """An object of the cluster under Determined's names.

    Fields of detcloud's own object are fields of the handle, too. Any other name raises an
    AttributeError, with the replacement if known.
    """

    instead: ClassVar[Mapping[str, str]] = {}
    """The replacements of Determined's names that detcloud does not support, by name."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self._found, name):
            return getattr(self._found, name)
        raise missing_name_error(type(self).__name__, name, self.instead)

    def reload(self) -> None:
        """Read all fields from the cluster again."""
        self._found.refresh()


def missing_name_error(kind: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Return the AttributeError for a missing name, with the replacement if in `instead`."""
    sentence = instead.get(name)
    if sentence is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name)
    return AttributeError(f"{kind}.{name} is not supported by detcloud: {sentence}", name=name)
