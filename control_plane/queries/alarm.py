"""The query of the cluster's raised alarms."""

from control_plane.alarms.rows import ALARMS, decode_alarm
from control_plane.alarms.runbook import runbook_page
from control_plane.queries.answer import Answer
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows


class AlarmView(Answer):
    """A raised alarm of the cluster.

    `pool` is empty for an alarm of the cluster as a whole. `text` is what the check found when it
    raised the alarm. `runbook` is the page of the alarm in detcloud's sources.
    """

    alarm: str
    pool: str
    text: str
    raised_ms: int
    runbook: str


class AlarmList(Answer):
    """The raised alarms of the cluster."""

    items: list[AlarmView]


def list_alarms(services: Services) -> AlarmList:
    """Return the alarms that are raised, sorted by name and pool.

    Alarms that the cloud evaluates, for example `minute`, are not included. Reads all rows of
    alarms.
    """
    rows = [decode_alarm(row.body) for row in read_rows(services.table, ALARMS)]
    return AlarmList(
        items=[
            AlarmView(
                alarm=row.alarm,
                pool=row.pool,
                text=row.text,
                raised_ms=row.raised_ms,
                runbook=runbook_page(row.alarm),
            )
            for row in rows
            if row.raised_ms is not None and row.cleared_ms is None
        ]
    )
