"""The states of an alarm, and the notifications that a state still needs. Pure.

    no row ──found──▶ waiting ──lasted──▶ raised ──not found──▶ cleared ──notified──▶ no row

A row waits only if the alarm's condition must last. A raised alarm notifies users once, and a
cleared alarm once more. A cleared alarm whose condition is found again is raised again: it notifies
users only if they were notified of neither change yet.
"""

from dataclasses import replace
from typing import Literal

from control_plane.alarms.records import AlarmRow, Finding

Change = Literal["raised", "cleared"]
"""A change of an alarm that users are notified of."""

# The time after which a process that claimed a notification counts as dead. A tick ends after a
# minute.
CLAIM_MS = 120_000


def next_row(
    row: AlarmRow | None, finding: Finding | None, now_ms: int, lasts_ms: int
) -> AlarmRow | None:
    """Return the row of an alarm after a check. None means that the row is deleted.

    The row has the text and the value of the last finding. A claimed row stays unchanged, because a
    process may be sending its notification.

    Args:
        row: the stored row, or None.
        finding: the condition that the check found, or None.
        now_ms: the time in epoch ms.
        lasts_ms: the time for which the condition must last before the alarm is raised.
    """
    if row is not None and is_claimed(row, now_ms):
        return row
    if finding is None:
        if row is None or row.raised_ms is None:
            return None
        return row if row.cleared_ms is not None else replace(row, cleared_ms=now_ms)
    if row is None:
        raised_ms = None if lasts_ms else now_ms
        return AlarmRow(
            finding.alarm, finding.pool, finding.text, now_ms, raised_ms, value=finding.value
        )
    row = replace(row, text=finding.text, value=finding.value)
    if row.cleared_ms is not None:
        return replace(row, cleared_ms=None)
    if row.raised_ms is None and now_ms - row.since_ms >= lasts_ms:
        return replace(row, raised_ms=now_ms)
    return row


def due_change(row: AlarmRow, now_ms: int) -> Change | None:
    """Return the next change that users must be notified of.

    Return None without such a change, and for a row that another process has claimed.
    """
    if row.raised_ms is None or is_claimed(row, now_ms):
        return None
    if not row.is_notified:
        return "raised"
    return None if row.cleared_ms is None else "cleared"


def claimed_row(row: AlarmRow, now_ms: int) -> AlarmRow:
    """Return the row while a process sends the notification."""
    return replace(row, claimed_ms=now_ms)


def notified_row(row: AlarmRow, change: Change) -> AlarmRow | None:
    """Return the row after users were notified of `change`. None means that the row is deleted."""
    return replace(row, is_notified=True, claimed_ms=0) if change == "raised" else None


def is_claimed(row: AlarmRow, now_ms: int) -> bool:
    """Return whether a process began to send a notification less than CLAIM_MS ago.

    A time in the future, from a clock that was ahead, does not count.
    """
    return row.claimed_ms > 0 and 0 <= now_ms - row.claimed_ms < CLAIM_MS
