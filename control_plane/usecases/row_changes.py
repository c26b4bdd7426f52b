"""Changes of one row of the table that others may change at the same moment."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from control_plane.errors import Code, RequestError
from control_plane.state.table import Conflict, Key, Row, StateTable, Write

_TRIES_MAX = 50

T = TypeVar("T")


def change_row(
    table: StateTable,
    key: Key,
    change: Callable[[Row | None], tuple[T, Iterable[Write]]],
    name: str,
    *,
    also: Collection[str] = (),
) -> T:
    """Commit the writes that `change` makes from the row as read, again as long as others are
    faster, and return the result it gives with them. `name`: the row's, for the error. `also`: the
    partitions of other rows that `change` reads, of which the same is true.

    Raises:
        RequestError: unavailable. And what `change` raises, and Conflict for other rows of the
            commit.
    """
    for _ in range(_TRIES_MAX):
        result, changed = change(table.get(key))
        writes = tuple(changed)
        try:
            if writes:
                table.commit(writes)
        except Conflict as conflict:
            if conflict.key != key and conflict.key.partition not in also:
                raise
        else:
            return result
    raise RequestError(Code.UNAVAILABLE, f"{name} changes too fast; try again")
