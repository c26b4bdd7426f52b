"""The rows that say which experiments started from a checkpoint, or that nobody can any more."""

from collections.abc import Iterable
from contextlib import suppress

from control_plane.actors.trial_checkpoints import PINS, read_pin
from control_plane.state.table import Conflict, Key, Put, StateTable

# Whoever found a checkpoint before it went has this long to come and be refused.
GONE_MS = 3600 * 1000


def is_pinned(table: StateTable, uuid: str, but: int = 0) -> bool:
    """Whether an experiment that exists started from the checkpoint, `but` that one."""
    row = table.get(Key(PINS, uuid))
    return row is not None and bool(set(read_pin(row.body).by) - {but})


def let_expire(table: StateTable, uuids: Iterable[str], now_ms: int) -> None:
    """Puts an end to the rows of checkpoints that are gone, of which their records tell. They are
    no more than a commit holds.
    """
    rows = [row for row in (table.get(Key(PINS, uuid)) for uuid in uuids) if row is not None]
    due_ms = now_ms + GONE_MS
    writes = [
        Put(row.key, row.revision + 1, row.body, row.revision, due_ms)
        for row in rows
        if row.due_ms is None
    ]
    # Where another collector was faster, it has done the same.
    with suppress(Conflict):
        if writes:
            table.commit(writes)
