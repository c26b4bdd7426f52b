"""Notices about instances: interruption notices, rebalance recommendations, and failed boots.

notices / INSTANCE#boot         its boot failed; what it wrote last
notices / INSTANCE#end          when it is taken away
notices / INSTANCE#rebalance    it is likely to be taken away soon

Both an instance's agent and the cloud's own events report the latter two; the second report changes
nothing. An instance itself reports its failed boot, before it has an agent. Where reserved capacity
ends, INSTANCE is the reservation, and stands for every instance in it. A row expires once nobody
can need it, and a new one wakes the provisioner.
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

_BOOT, _INTERRUPTION, _REBALANCE = "boot", "end", "rebalance"


@dataclass(frozen=True, slots=True)
class InstanceNotice:
    """A notice that the instance, or what is in the reservation of that id, ends at `deadline_ms`
    (epoch); None: the cloud recommends to leave it. With a `boot_report` it is that its boot
    failed, and nothing else.
    """

    instance: str
    deadline_ms: int | None = None
    boot_report: str = ""


def record_notice(table: StateTable, notice: InstanceNotice, now_ms: int) -> bool:
    """Store a notice; False where it was known."""
    kind = _REBALANCE if notice.deadline_ms is None else _INTERRUPTION
    fields: dict[str, object] = {"deadline_ms": notice.deadline_ms}
    if notice.boot_report:
        kind, fields = _BOOT, {"boot_report": notice.boot_report}
    body = json.dumps(fields).encode()
    key = Key(NOTICES, f"{notice.instance}#{kind}")
    with suppress(Conflict):
        table.commit((Put(key, 1, body, Expect.ABSENT, due_ms=now_ms + NOTICE_TTL_MS),))
        return True
    return False


def read_notices(table: StateTable) -> Iterator[InstanceNotice]:
    """Return all stored notices; an instance's interruption comes before its recommendation."""
    for row in read_rows(table, NOTICES):
        instance = row.key.sort.rpartition("#")[0]
        fields = json.loads(row.body)
        yield InstanceNotice(
            instance, fields.get("deadline_ms"), str(fields.get("boot_report") or "")
        )
