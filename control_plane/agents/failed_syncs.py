"""The record of syncs that failed by an error of the cluster's own, though agents call.

An API whose sync alone is broken answers everything else, a probe as well. So it notes, seldom,
that a call failed; a pass over the leases asks for that where no agent of a pool was served.
"""

import json
from contextlib import suppress

from control_plane.state.table import Expect, Key, Put, StateTable, TableError

FAILED_SYNC = Key("cluster", "failed-sync")
# Agents call again after 15 s at most.
RECENT_MS = 60_000
WRITE_MS = 10_000


class FailedSyncs:
    """Notes failed syncs of one process, one in WRITE_MS at most."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._written_ms = 0

    def record(self, now_ms: int) -> None:
        """Note that a sync failed now."""
        if abs(now_ms - self._written_ms) < WRITE_MS:
            return
        self._written_ms = now_ms
        body = json.dumps({"failed_ms": now_ms}).encode()
        # What failed is told anyway.
        with suppress(TableError):
            self._table.commit((Put(FAILED_SYNC, 1, body, Expect.ANYTHING),))


def has_failed_recently(table: StateTable, now_ms: int) -> bool:
    """Return whether a sync failed within RECENT_MS."""
    row = table.get(FAILED_SYNC)
    return row is not None and abs(now_ms - json.loads(row.body)["failed_ms"]) <= RECENT_MS
