"""Changing one row of the table that others may change at the same moment."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from control_plane.api.errors import ApiError, Code
from control_plane.state.table import Conflict, Key, Row, StateTable, Write

_TRIES_MAX = 50

T = TypeVar("T")


def change_row(
    table: StateTable,
    key: Key,
    change: Callable[[Row | None], tuple[T, Iterable[Write]]],
    name: str,
) -> T:
    """Commits what `change` makes of the row as read, again as long as others are faster, and
    returns the first of what it gave. `name` is the row's in the error.

    Raises:
        ApiError: unavailable. And what `change` raises, and Conflict for other rows of the commit.
    """
    for _ in range(_TRIES_MAX):
        result, writes = change(table.get(key))
        try:
            table.commit(tuple(writes))
        except Conflict as conflict:
            if conflict.key != key:
                raise
        else:
            return result
    raise ApiError(Code.UNAVAILABLE, f"{name} changes too fast; try again")
