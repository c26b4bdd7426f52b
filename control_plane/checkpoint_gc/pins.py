"""Reading and expiring pin rows, which keep checkpoints from deletion (actors/pins.py)."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from control_plane.actors.pins import PINS, Pin, decode_pin
from control_plane.state.table import GET_MAX, Conflict, Key, Put, Row, StateTable

# The time for which the pin row of a deleted checkpoint stays. A request that read the checkpoint
# before the deletion is refused within this time.
PIN_TTL_MS = 3600 * 1000


def is_pinned(table: StateTable, uuid: str, except_experiment: int = 0) -> bool:
    """Return whether an experiment, a model version or a user keeps a checkpoint from deletion.

    The experiment with the id `except_experiment` does not count. Raises TableError.
    """
    row = table.get(Key(PINS, uuid))
    return row is not None and decode_pin(row.body).is_held(except_experiment)


def read_pins(table: StateTable, uuids: Sequence[str]) -> list[Pin]:
    """Read the pins of checkpoints, in the order of `uuids`; an empty Pin for a missing row.

    Raises TableError.
    """
    return [Pin() if row is None else decode_pin(row.body) for row in _pin_rows(table, uuids)]


def expire_pins(table: StateTable, uuids: Sequence[str], now_ms: int) -> None:
    """Let the pin rows of deleted checkpoints expire PIN_TTL_MS after `now_ms`.

    Rows that are missing or expire already stay unchanged. If another process changes a row
    meanwhile, change nothing. Raises TableError.

    Args:
        uuids: the deleted checkpoints, at most OPERATIONS_MAX.
        now_ms: the time in epoch ms.
    """
    rows = [row for row in _pin_rows(table, uuids) if row is not None]
    due_ms = now_ms + PIN_TTL_MS
    writes = [
        Put(row.key, row.revision + 1, row.body, row.revision, due_ms, expires=True)
        for row in rows
        if row.due_ms is None
    ]
    # A conflict means that another collector was faster and wrote the same expiry.
    with suppress(Conflict):
        if writes:
            table.commit(writes)


def _pin_rows(table: StateTable, uuids: Sequence[str]) -> Iterator[Row | None]:
    """Yield the pin row of each checkpoint in the order of `uuids`, or None for a missing row.

    The rows are read in batches of GET_MAX. Raises TableError.
    """
    for start in range(0, len(uuids), GET_MAX):
        yield from table.get_many([Key(PINS, uuid) for uuid in uuids[start : start + GET_MAX]])
