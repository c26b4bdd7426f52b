"""Optimistic change of a row: read, change, commit, and retry after a conflict.

The first revision of a row that users may delete and create again is a time. So the new row does
not repeat a revision of the deleted row, and a writer of the deleted row gets a conflict.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from control_plane.errors import Code, RequestError
from control_plane.state.table import Conflict, Expect, Key, Put, Row, StateTable, Write

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
    """Change a row of the table in a commit, and retry if the row was changed concurrently.

    Args:
        table: the state table.
        key: the key of the row.
        change: returns a result and the writes to commit, given the current row or None. It is
            called again after a conflict. Without writes nothing is committed. Its errors are
            passed on.
        name: the name of the row's object, for the error.
        also: the partitions of other rows that `change` reads. A conflict there is retried too.

    Returns:
        The result of `change` for the committed writes.

    Raises:
        RequestError: unavailable, after _TRIES_MAX conflicts.
        Conflict: a condition on a row of another partition does not hold.
    """
    for _ in range(_TRIES_MAX):
        result, new_writes = change(table.get(key))
        writes = tuple(new_writes)
        try:
            if writes:
                table.commit(writes)
        except Conflict as conflict:
            if conflict.key != key and conflict.key.partition not in also:
                raise
        else:
            return result
    raise RequestError(Code.UNAVAILABLE, f"{name} changes too fast; try again")


def replacing_put(key: Key, former: Row | None, body: bytes, now_ms: int) -> Put:
    """Return the write that stores `body` in place of the row `former`; commit nothing.

    The write expects the revision of `former`, and keeps its due time. Without `former`, the write
    expects no row and has the revision `now_ms`.
    """
    if former is None:
        return Put(key, now_ms, body, Expect.ABSENT)
    return Put(key, former.revision + 1, body, former.revision, former.due_ms, former.expires)
