"""Duties: periodic tasks of a group of servers, each done by a single server at a time.

The holder of a duty renews a row. Another server takes the duty over when the row has not changed
for some time by the clock of that server. Two servers may therefore hold a duty for a moment. The
tasks allow this: each commit is conditional, as in the functions of the clouds.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress

from control_plane.rows import cluster_rows
from control_plane.state.table import Conflict, Expect, Key, Put, Row, StateTable

TICK = "tick"
"""The duty of the periodic maintenance, of suggestions and of the relay of tunnels."""
INSTANCES = "instances"
"""The duty of launching agents as processes of the server's machine."""
SILENT_SECONDS = {TICK: 8.0, INSTANCES: 60.0}
"""The time without a renewal after which another server takes a duty over, in seconds."""
RENEWALS = 4
"""The number of renewals in the time after which another server takes a duty over."""


class Duty:
    """A duty of several servers with a common state.

    Args:
        table: the state table.
        name: the name of the duty, a key of SILENT_SECONDS.
        holder: the id of this server's data folder.
        url: the address of this server.
        seconds: returns seconds that never decrease.
    """

    def __init__(
        self,
        table: StateTable,
        name: str,
        holder: str,
        url: str,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._key = duty_key(name)
        self._holder = holder
        self._url = url
        self._seconds = seconds
        self._silent_seconds = SILENT_SECONDS[name]
        self._seen = 0
        self._seen_seconds = 0.0
        self._renewed_seconds = 0.0
        self.was_held = False
        """Whether the last call of `is_held` returned True."""

    def is_held(self) -> bool:
        """Take or renew the duty if possible, and return whether this server holds the duty.

        Raises TableError.
        """
        self.was_held = False
        self.was_held = self._try_hold(self._table.get(self._key))
        return self.was_held

    def release(self) -> None:
        """Let another server take the duty at once, if this server holds the duty.

        Raises TableError.
        """
        row = self._table.get(self._key)
        if row is not None and _holder_of(row) == self._holder:
            with suppress(Conflict):
                self._write(row, "")
        self.was_held = False

    def _try_hold(self, row: Row | None) -> bool:
        """Take or renew the duty, given the stored row. Return whether this server holds it."""
        now = self._seconds()
        holder = "" if row is None else _holder_of(row)
        if row is not None and holder not in ("", self._holder):
            if row.revision != self._seen:
                self._seen, self._seen_seconds = row.revision, now
            if now - self._seen_seconds < self._silent_seconds:
                return False
        is_recent = now - self._renewed_seconds < self._silent_seconds / RENEWALS
        if holder == self._holder and self._renewed_seconds and is_recent:
            return True
        try:
            self._write(row, self._holder)
        except Conflict:
            return False
        self._renewed_seconds = now
        return True

    def _write(self, row: Row | None, holder: str) -> None:
        """Replace the row of the duty. Raises Conflict if another server was faster."""
        revision = 0 if row is None else row.revision
        body = json.dumps({"holder": holder, "url": self._url if holder else ""}).encode()
        self._table.commit((Put(self._key, revision + 1, body, revision or Expect.ABSENT),))


def duty_key(name: str) -> Key:
    """Return the key of a duty's row."""
    return Key(cluster_rows.DUTY.partition, name)


def read_holder_url(table: StateTable, name: str) -> str:
    """Return the address of the server that holds a duty, or "" for no server.

    Raises TableError.
    """
    row = table.get(duty_key(name))
    return "" if row is None else str(json.loads(row.body)["url"])


def _holder_of(row: Row) -> str:
    """Return the id of the data folder of the duty's holder, or "" after a release."""
    return str(json.loads(row.body)["holder"])
