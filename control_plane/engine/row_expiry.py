"""Deletion of expired rows, and of the journal rows before an expired journal row.

Experiments with an expired row of their retention get a message before the row is deleted.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.messages.experiment_expiry import ExpiryDue
from control_plane.engine.engine import Engine
from control_plane.engine.journal import JOURNAL
from control_plane.rows.experiment_rows import RETENTION_END
from control_plane.state.table import OPERATIONS_MAX, Conflict, Delete, Expect, Key

SENDER = "retention"


def delete_expired(engine: Engine, keys: Sequence[Key]) -> int:
    """Delete the rows of `keys` that are due now. Return the number of deleted rows.

    With an expired journal row, all earlier rows of the same journal are deleted and counted too.
    With the row of a retention's end, the experiment gets an ExpiryDue first.
    Rows that another process has changed or deleted are not deleted and not counted. Raises
    Unavailable; rows that are deleted already stay deleted.

    Args:
        keys: at most GET_MAX keys. Empty deletes nothing.
    """
    now_ms = engine.clock()
    rows = [
        row
        for row in engine.table.get_many(keys)
        if row is not None and row.due_ms is not None and row.due_ms <= now_ms
    ]
    _announce_retention_ends(engine, [row.key for row in rows])
    deletions = [Delete(row.key, row.revision) for row in rows]
    trimmed = sum(
        _trim_journal(engine, row.key) for row in rows if row.key.sort.startswith(JOURNAL)
    )
    try:
        if deletions:
            engine.table.commit(deletions)
    except Conflict as conflict:
        # Another process deletes rows of this page as well. Delete the remaining rows separately.
        others = [delete for delete in deletions if delete.key != conflict.key]
        return trimmed + sum(_delete_one(engine, deletion) for deletion in others)
    return trimmed + len(deletions)


def _announce_retention_ends(engine: Engine, keys: Sequence[Key]) -> None:
    """Send an ExpiryDue to the experiments of the rows of RETENTION_END among `keys`.

    A crash before the deletion of the rows repeats the messages, which does no harm. Raises
    TableError.
    """
    receivers = [
        addresses.experiment(int(key.sort))
        for key in keys
        if key.partition == RETENTION_END.partition
    ]
    if receivers:
        engine.store_messages(receivers, ExpiryDue(), sender=SENDER)


def _trim_journal(engine: Engine, expired: Key) -> int:
    """Delete the journal rows before an expired row. Return the number of deleted rows.

    The expired row itself is not deleted. Raises Unavailable; earlier deletions remain.
    """
    deleted = 0
    while rows := engine.table.query(
        expired.partition, JOURNAL, expired.sort, limit=OPERATIONS_MAX
    ).rows:
        engine.table.commit([Delete(row.key, Expect.ANYTHING) for row in rows])
        deleted += len(rows)
    return deleted


def _delete_one(engine: Engine, deletion: Delete) -> bool:
    """Delete a row. Return False, without a change, if another process has changed the row.

    Raises Unavailable.
    """
    try:
        engine.table.commit((deletion,))
    except Conflict:
        return False
    return True
