"""The age of the tick's last pass over the instances of a pool, for the answers to agents.

The tick launches and terminates instances. If the tick is dead, nobody terminates idle instances,
so the agents of instances must learn the age and end their machines themselves.

The provisioner already stores the time of its last pass in the row of the pool's fleet, about once
a minute while the pool has instances. Therefore no further row is written. A pool without
instances of the provisioner has no such row.
"""

import threading

from control_plane.fleet.rows import read_fleet
from control_plane.state.table import StateTable, TableError

READ_MS = 60_000
"""The time for which a process uses a time that it has read.

The reads of an agent's syncs then cost far less than the syncs themselves, which come every 10 to
15 s. The age is at most this much too high.
"""


class TickAges:
    """A reader of ages by pool, which reads a pool's row at most once in `READ_MS`.

    Threads may share a reader.
    """

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._passes: dict[str, tuple[int, int]] = {}

    def age_ms(self, pool: str, now_ms: int) -> int | None:
        """Return the time in ms since the tick's last pass over the pool's instances, at least 0.

        Return None if no pass is recorded, and if the row cannot be read. A failed read is not
        repeated within `READ_MS` either.

        Args:
            pool: the name of the pool.
            now_ms: the present time in epoch ms.
        """
        with self._lock:
            known = self._passes.get(pool)
        # The absolute difference also ends the use of a time that was read by a clock ahead.
        if known is None or abs(now_ms - known[0]) >= READ_MS:
            known = now_ms, self._read_passed_ms(pool)
            with self._lock:
                self._passes[pool] = known
        passed_ms = known[1]
        return max(0, now_ms - passed_ms) if passed_ms else None

    def _read_passed_ms(self, pool: str) -> int:
        """Return the start of the last pass in epoch ms. Return 0 if unknown."""
        try:
            fleet = read_fleet(self._table, pool)
        except (TableError, ValueError):
            # The age is only a precaution, so that a failure must not refuse the sync.
            return 0
        return 0 if fleet is None else fleet.passed_ms
