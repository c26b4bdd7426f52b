"""What was announced about instances: that they are taken away, or that this has become likely.

notices / INSTANCE#end          when it is taken away
notices / INSTANCE#rebalance    it may be soon

Their agents say so, and the cloud's own events; whoever comes second changes nothing. A row goes by
itself once it can matter to nobody.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from control_plane.fleet.rows import read_all
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable

NOTICES = "notices"
# Instances are gone minutes after a notice; advice holds for longer.
KEPT_MS = 3_600_000

_END, _REBALANCE = "end", "rebalance"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The instance ends at `deadline_ms` (epoch); None: the cloud advises to leave it."""

    instance: str
    deadline_ms: int | None = None


def announce(table: StateTable, told: Announcement, now_ms: int) -> bool:
    """Keeps it; False where it was known."""
    kind = _REBALANCE if told.deadline_ms is None else _END
    body = json.dumps({"deadline_ms": told.deadline_ms}).encode()
    key = Key(NOTICES, f"{told.instance}#{kind}")
    with suppress(Conflict):
        table.commit((Put(key, 1, body, Expect.ABSENT, due_ms=now_ms + KEPT_MS),))
        return True
    return False


def announcements(table: StateTable) -> Iterator[Announcement]:
    """All that are kept; of one instance its end comes before the advice."""
    for row in read_all(table, NOTICES):
        instance = row.key.sort.rpartition("#")[0]
        yield Announcement(instance, json.loads(row.body)["deadline_ms"])
