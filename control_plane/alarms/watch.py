"""The check of the cluster's alarms, which the tick runs every five minutes.

A check reads the rows that the conditions need, stores the alarms that changed, and then sends the
due notifications. Each notification is claimed in the alarm's row first, so that of concurrent
checks only one sends it. A check that is killed between the notification and its record leaves the
claim; after CLAIM_MS, a later check sends the notification again. Notifications are therefore never
lost, and are repeated only after such a kill.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from control_plane.actors.event_routes import EventCondition, EventType
from control_plane.actors.events import Event
from control_plane.alarms.kinds import CLUSTER_ALARMS
from control_plane.alarms.notifications import AlarmNotification, NotificationFailed, Notifier
from control_plane.alarms.observations import Observations
from control_plane.alarms.records import AlarmRow, Finding
from control_plane.alarms.rows import ALARMS, alarm_key, decode_alarm, encode_alarm
from control_plane.alarms.runbook import runbook_page
from control_plane.alarms.transitions import (
    Change,
    claimed_row,
    due_change,
    next_row,
    notified_row,
)
from control_plane.config.alarms import Alarms
from control_plane.engine.engine import Engine
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, Row, StateTable
from control_plane.webhooks.event_writes import event_writes

log = logging.getLogger(__name__)


class ChecksFailed(Exception):
    """Some alarms could not be checked, or notifications could not be sent. The next check repeats
    both. The message names the alarms.
    """


class AlarmWatch:
    """The check of all alarms of a cluster.

    Args:
        engine: the engine of the cluster.
        notifier: sends the notifications.
        cluster_id: the id of the cluster, for notifications.
        runbook_url: the URL of the team's copy of the runbook, or "".
        cluster_url: the URL of the cluster's API for links to the web page, or "".
    """

    def __init__(
        self,
        engine: Engine,
        notifier: Notifier,
        cluster_id: str,
        runbook_url: str = "",
        cluster_url: str = "",
    ) -> None:
        self._engine = engine
        self._notifier = notifier
        self._cluster_id = cluster_id
        self._runbook_url = runbook_url
        self._cluster_url = cluster_url

    def check(self, settings: Alarms, late_ms: int | None) -> None:
        """Check all alarms, store the changes, and send the due notifications.

        An alarm that cannot be checked keeps its state, and is logged. Raises ChecksFailed at the
        end if alarms could not be checked or notifications were not accepted. Raises TableError if
        the rows of alarms cannot be read or written.

        Args:
            settings: the thresholds.
            late_ms: the time that the oldest late message had waited, 0 without late messages. None
                if this tick could not read the messages; the alarm `lag` then keeps its state.
        """
        observations = Observations(self._engine, settings)
        found: dict[str, tuple[Finding, ...]] = {}
        failed: list[str] = []
        for name, find in observations.conditions(late_ms).items():
            try:
                found[name] = () if name in settings.off else tuple(find())
            except Exception:
                log.exception("alarm %s could not be checked", name)
                failed.append(name)
        self._store_changes(found)
        failed += self._send_due_notifications()
        if failed:
            raise ChecksFailed(f"failed: {', '.join(sorted(set(failed)))}")

    def _store_changes(self, found: Mapping[str, Iterable[Finding]]) -> None:
        """Store the rows of alarms that the findings change. A concurrent change is left as it is.

        Webhooks announce raised and cleared alarms.

        Args:
            found: the findings of each alarm that was checked.
        """
        table, now_ms = self._engine.table, self._engine.clock()
        stored = {row.key: row for row in read_rows(table, ALARMS)}
        findings = {
            alarm_key(finding.alarm, finding.pool): finding
            for alarm_findings in found.values()
            for finding in alarm_findings
        }
        for key in sorted(stored.keys() | findings.keys()):
            former, finding = stored.get(key), findings.get(key)
            row = None if former is None else decode_alarm(former.body)
            alarm = finding.alarm if finding is not None else row.alarm if row is not None else ""
            if alarm not in found:
                # The alarm was not checked, or a newer version defined it.
                continue
            after = next_row(row, finding, now_ms, CLUSTER_ALARMS[alarm].lasts_ms)
            if after != row:
                events = _change_event_writes(table, row, after, now_ms)
                with suppress(Conflict):
                    _replace_row(table, key, former, after, events)

    def _send_due_notifications(self) -> list[str]:
        """Send the due notifications, and return the alarms of refused notifications.

        A refusal is logged. The notification is sent again after CLAIM_MS.
        """
        failed = []
        for row in read_rows(self._engine.table, ALARMS):
            alarm = decode_alarm(row.body)
            change = due_change(alarm, self._engine.clock())
            if change is None:
                continue
            try:
                self._send_notification(row, alarm, change)
            except NotificationFailed as error:
                log.error("the notification of alarm %s was not sent: %s", alarm.alarm, error)
                failed.append(alarm.alarm)
        return failed

    def _send_notification(self, row: Row, alarm: AlarmRow, change: Change) -> None:
        """Claim, send and record a notification. Do nothing if another process was faster.

        Raises NotificationFailed, and TableErrors other than Conflict.
        """
        table = self._engine.table
        claimed = claimed_row(alarm, self._engine.clock())
        try:
            stored = _replace_row(table, row.key, row, claimed)
        except Conflict:
            return
        self._notifier.notify(
            AlarmNotification(
                cluster=self._cluster_id,
                alarm=alarm.alarm,
                pool=alarm.pool,
                change=change,
                text=alarm.text,
                raised_ms=alarm.raised_ms or 0,
                runbook=runbook_page(alarm.alarm, self._runbook_url, self._cluster_url),
            )
        )
        with suppress(Conflict):
            _replace_row(table, row.key, stored, notified_row(claimed, change))


def _change_event_writes(
    table: StateTable, before: AlarmRow | None, after: AlarmRow | None, now_ms: int
) -> tuple[Put, ...]:
    """Return the write of the event of a raised or cleared alarm; () for another change.

    An alarm that is found again after its end is announced as raised again. Raises TableError.
    """
    was_raised = before is not None and before.raised_ms is not None and before.cleared_ms is None
    is_raised = after is not None and after.raised_ms is not None and after.cleared_ms is None
    alarm = after or before
    if alarm is None or was_raised is is_raised:
        return ()
    state = "raised" if is_raised else "cleared"
    place = f" in pool {alarm.pool}" if alarm.pool else ""
    data = {"name": alarm.alarm, "pool": alarm.pool, "state": state, "value": alarm.value}
    event = Event(
        EventType.ALARM,
        f"alarm#{alarm.alarm}#{alarm.pool}",
        now_ms,
        f"alarm {alarm.alarm}{place} is {state}",
        alarm.text,
        EventCondition(state=state),
        {"alarm": data},
    )
    return event_writes(table, event, now_ms)


def _replace_row(
    table: StateTable,
    key: Key,
    former: Row | None,
    alarm: AlarmRow | None,
    events: tuple[Put, ...] = (),
) -> Row | None:
    """Store `alarm` in place of the row `former`, or delete the row. Return the new row.

    The commit has the writes `events`, too. Raises Conflict if the row has changed, and other
    TableErrors.
    """
    if alarm is None:
        assert former is not None
        table.commit((Delete(key, former.revision), *events))
        return None
    body = encode_alarm(alarm, None if former is None else former.body)
    # A row that is created again must not repeat a revision of the deleted row.
    revision = (alarm.since_ms if former is None else former.revision) + 1
    expected = Expect.ABSENT if former is None else former.revision
    table.commit((Put(key, revision, body, expected), *events))
    return Row(key, revision, body)
