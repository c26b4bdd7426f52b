"""The rows that name the experiments that started from a checkpoint, or forbid starting from it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from control_plane.actors.pins import PINS, Pin, decode_pin
from control_plane.state.table import GET_MAX, Conflict, Key, Put, Row, StateTable

# A request that read a checkpoint before its deletion is refused for this long.
PIN_TTL_MS = 3600 * 1000


def is_pinned(table: StateTable, uuid: str, except_experiment: int = 0) -> bool:
    """Whether an experiment, other than `except_experiment`, started from the checkpoint, a
    model version holds it, or a user pinned it.
    """
    row = table.get(Key(PINS, uuid))
    return row is not None and decode_pin(row.body).is_held(except_experiment)


def read_pins(table: StateTable, uuids: Sequence[str]) -> list[Pin]:
    """Read the pins of checkpoints, in their order; an empty one for each that nothing holds."""
    return [Pin() if row is None else decode_pin(row.body) for row in _pin_rows(table, uuids)]


def expire_pins(table: StateTable, uuids: Sequence[str], now_ms: int) -> None:
    """Set the expiry of rows of checkpoints that are gone, which their records tell. `uuids` are no
    more than a commit holds.
    """
    rows = [row for row in _pin_rows(table, uuids) if row is not None]
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


def _pin_rows(table: StateTable, uuids: Sequence[str]) -> Iterator[Row | None]:
    """The rows of checkpoints' pins in their order, as many at once as one read takes."""
    for start in range(0, len(uuids), GET_MAX):
        yield from table.get_many([Key(PINS, uuid) for uuid in uuids[start : start + GET_MAX]])
