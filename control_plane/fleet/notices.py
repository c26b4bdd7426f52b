"""Notices about instances: interruption notices and rebalance recommendations.

notices / INSTANCE#end          when it is taken away
notices / INSTANCE#rebalance    it is likely to be taken away soon

Both an instance's agent and the cloud's own events report them; the second report changes nothing.
A row expires once nobody can need it.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from control_plane.fleet.rows import read_rows
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable

NOTICES = "notices"
# Instances are gone minutes after a notice; advice holds for longer.
NOTICE_TTL_MS = 3_600_000

_INTERRUPTION, _REBALANCE = "end", "rebalance"


@dataclass(frozen=True, slots=True)
class InstanceNotice:
    """A notice that the instance ends at `deadline_ms` (epoch); None: the cloud recommends to leave
    it.
    """

    instance: str
    deadline_ms: int | None = None


def record_notice(table: StateTable, notice: InstanceNotice, now_ms: int) -> bool:
    """Store a notice; False where it was known."""
    kind = _REBALANCE if notice.deadline_ms is None else _INTERRUPTION
    body = json.dumps({"deadline_ms": notice.deadline_ms}).encode()
    key = Key(NOTICES, f"{notice.instance}#{kind}")
    with suppress(Conflict):
        table.commit((Put(key, 1, body, Expect.ABSENT, due_ms=now_ms + NOTICE_TTL_MS),))
        return True
    return False


def read_notices(table: StateTable) -> Iterator[InstanceNotice]:
    """Return all stored notices; an instance's interruption comes before its recommendation."""
    for row in read_rows(table, NOTICES):
        instance = row.key.sort.rpartition("#")[0]
        yield InstanceNotice(instance, json.loads(row.body)["deadline_ms"])
