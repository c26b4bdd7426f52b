"""Notices about instances: interruption notices, rebalance recommendations, and failed boots.

notices / INSTANCE#boot         a failed boot: the last lines that the instance wrote
notices / INSTANCE#end          an interruption notice: the time at which the instance ends; also
                                the announcement of an instance that ends itself, with a reason
notices / INSTANCE#rebalance    a rebalance recommendation: the instance may end soon

An instance's agent and the cloud's events both report interruptions and recommendations; a second
report changes nothing. The instance itself reports a failed boot. If reserved capacity ends,
INSTANCE is the id of the reservation and the row applies to all of its instances. A row expires
after NOTICE_TTL_MS. A new row wakes the provisioner.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from control_plane.rows import fleet_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable

NOTICES = fleet_rows.NOTICE.partition
# Instances end minutes after an interruption notice; a recommendation stays valid for longer.
NOTICE_TTL_MS = 3_600_000

_BOOT, _INTERRUPTION, _REBALANCE = "boot", "end", "rebalance"


@dataclass(frozen=True, slots=True)
class InstanceNotice:
    """A notice about an instance.

    It is a failed boot if `boot_report` is set, else a rebalance recommendation if `deadline_ms` is
    None. Otherwise the instance ends: by itself if `reason` is set, else by the cloud.
    """

    instance: str
    """The id of the instance, or of a reservation that stands for all instances in it."""
    deadline_ms: int | None = None
    """The time at which the instance ends, in epoch milliseconds."""
    boot_report: str = ""
    """The last lines that the instance wrote before its boot failed."""
    reason: str = ""
    """Why the instance ends itself, for users. "" if the cloud ends the instance."""


def record_notice(table: StateTable, notice: InstanceNotice, now_ms: int) -> bool:
    """Store a notice for NOTICE_TTL_MS.

    Return True if the notice was stored, and False if a notice of its kind for this instance was
    stored before.
    """
    kind = _REBALANCE if notice.deadline_ms is None else _INTERRUPTION
    fields: dict[str, object] = {"deadline_ms": notice.deadline_ms}
    if notice.reason:
        fields["reason"] = notice.reason
    if notice.boot_report:
        kind, fields = _BOOT, {"boot_report": notice.boot_report}
    body = json.dumps(fields).encode()
    key = Key(NOTICES, f"{notice.instance}#{kind}")
    with suppress(Conflict):
        table.commit((Put(key, 1, body, Expect.ABSENT, due_ms=now_ms + NOTICE_TTL_MS),))
        return True
    return False


def read_notices(table: StateTable) -> Iterator[InstanceNotice]:
    """Yield all stored notices; an instance's interruption comes before its recommendation."""
    for row in read_rows(table, NOTICES):
        instance = row.key.sort.rpartition("#")[0]
        fields = json.loads(row.body)
        yield InstanceNotice(
            instance,
            fields.get("deadline_ms"),
            str(fields.get("boot_report") or ""),
            str(fields.get("reason") or ""),
        )
