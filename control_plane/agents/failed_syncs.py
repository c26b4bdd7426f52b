"""The record of syncs that failed because of an error in the cluster, not in the agent.

If only sync is broken, the API still answers every other request, probes included. So the API
records a failed sync in a row of the state table, at most once in `WRITE_MS` per process. If no
agent of a pool renewed its lease, the pass over the leases reads the row before it marks agents.
"""

import json
from contextlib import suppress

from control_plane.rows import cluster_rows
from control_plane.state.table import Expect, Key, Put, StateTable, TableError

FAILED_SYNC = Key(*cluster_rows.FAILED_SYNC.only_key)
# Agents call again at most 15 s after a failed call.
RECENT_MS = 60_000
"""The age up to which a failed sync counts as recent."""
WRITE_MS = 10_000
"""The minimum time between two writes of the record by one process."""


class FailedSyncs:
    """A recorder of failed syncs, which writes at most once in `WRITE_MS`."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._written_ms = 0

    def record(self, now_ms: int) -> None:
        """Write the time of a failed sync to the state table, unless written within `WRITE_MS`.

        Errors of the state table are ignored, and the next write is due after `WRITE_MS` as well.
        """
        if abs(now_ms - self._written_ms) < WRITE_MS:
            return
        self._written_ms = now_ms
        body = json.dumps({"failed_ms": now_ms}).encode()
        # The caller already reports why the sync failed.
        with suppress(TableError):
            self._table.commit((Put(FAILED_SYNC, 1, body, Expect.ANYTHING),))


def has_failed_recently(table: StateTable, now_ms: int) -> bool:
    """Return whether a sync failed at most `RECENT_MS` ago, according to the stored record.

    False without a record. A record from a clock that is far ahead does not count. Raises
    TableError.
    """
    row = table.get(FAILED_SYNC)
    return row is not None and abs(now_ms - json.loads(row.body)["failed_ms"]) <= RECENT_MS
