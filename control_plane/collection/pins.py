"""The rows that name the experiments that started from a checkpoint, or forbid starting from it."""

from collections.abc import Iterable
from contextlib import suppress

from control_plane.actors.pins import PINS, decode_pin
from control_plane.state.table import Conflict, Key, Put, StateTable

# Whoever found a checkpoint before it was deleted has this long to come and be refused.
PIN_TTL_MS = 3600 * 1000


def is_pinned(table: StateTable, uuid: str, except_experiment: int = 0) -> bool:
    """Whether an experiment, other than `except_experiment`, started from the checkpoint, a
    model version holds it, or a user pinned it.
    """
    row = table.get(Key(PINS, uuid))
    return row is not None and decode_pin(row.body).is_held(except_experiment)


def expire_pins(table: StateTable, uuids: Iterable[str], now_ms: int) -> None:
    """Set the expiry of rows of checkpoints that are gone, which their records tell. `uuids` are no
    more than a commit holds.
    """
    rows = [row for row in (table.get(Key(PINS, uuid)) for uuid in uuids) if row is not None]
    due_ms = now_ms + PIN_TTL_MS
    writes = [
        Put(row.key, row.revision + 1, row.body, row.revision, due_ms, expires=True)
        for row in rows
        if row.due_ms is None
    ]
    # Where another collector was faster, it has done the same.
    with suppress(Conflict):
        if writes:
            table.commit(writes)
