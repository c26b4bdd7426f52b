"""The queries of the cluster's alarms, and of the pages of the runbook."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from control_plane.alarms.kinds import CLUSTER_ALARMS
from control_plane.alarms.records import AlarmRow
from control_plane.alarms.rows import ALARMS, decode_alarm
from control_plane.alarms.thresholds import threshold_text
from control_plane.config.alarms import Alarms
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.cluster_configuration import alarm_settings
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from detcloud.shared.runbook import FOLDER, alarm_names, read_page

PAGES = Path(__file__).resolve().parents[2] / FOLDER
"""The runbook in a checkout, in an installation and in the archive of a function."""

AlarmState = Literal["raised", "pending", "clear", "off"]
"""`pending`: the condition is true, but has not lasted long enough.

`off`: the cluster configuration turns the alarm off.
"""


log = logging.getLogger(__name__)


class AlarmView(Answer):
    """An alarm of the cluster, or of a pool.

    `pool` is empty for the cluster as a whole. `text` and `value` are what the last check found,
    and empty for alarms that are clear or off. `threshold` is the value from which the alarm is
    raised. `since_ms` is the begin of the state, or null if unknown. `runbook` is the path of the
    alarm's page in detcloud's sources.
    """

    alarm: str
    pool: str
    text: str
    raised_ms: int | None
    runbook: str
    state: AlarmState
    since_ms: int | None
    value: str
    threshold: str
    meaning: str


class AlarmList(Answer):
    """Alarms of the cluster. `cloud_alarms` are the names of the alarms that a cloud evaluates.

    The cluster does not know the states of those alarms.
    """

    items: list[AlarmView]
    cloud_alarms: list[str]


class AlarmDescription(Answer):
    """An alarm with the runbook.

    `items` has the alarm's state, for each pool in which the alarm is not clear. The list is empty
    for an alarm that a cloud evaluates. `runbook` is Markdown.
    """

    alarm: str
    items: list[AlarmView]
    runbook: str


def list_alarms(services: Services, *, raised_only: bool = True) -> AlarmList:
    """Return the alarms that the cluster decides, sorted by name and pool.

    Reads all rows of alarms and the cluster configuration. Raises TableError.

    Args:
        services: the services with the state table.
        raised_only: whether to leave out alarms that are pending, clear or off.
    """
    items = _views(services)
    shown = [view for view in items if view.state == "raised"] if raised_only else list(items)
    names = [name for name in alarm_names(PAGES) if name not in CLUSTER_ALARMS]
    return AlarmList(items=shown, cloud_alarms=names)


def describe_alarm(services: Services, alarm: str) -> AlarmDescription:
    """Return the states of an alarm, and the alarm's page of the runbook.

    Raises:
        RequestError: not_found, for an unknown alarm.
        TableError: the state table failed.
    """
    page = read_page(PAGES, alarm)
    if page is None:
        known = ", ".join(alarm_names(PAGES))
        raise RequestError(Code.NOT_FOUND, f"there is no alarm {alarm}; the alarms are {known}")
    items = [view for view in _views(services) if view.alarm == alarm]
    return AlarmDescription(alarm=alarm, items=items, runbook=page)


def _views(services: Services) -> Iterator[AlarmView]:
    """Yield the alarms with a row, and each other alarm once, sorted by name and pool."""
    settings = _settings(services)
    rows = [decode_alarm(row.body) for row in read_rows(services.table, ALARMS)]
    # An alarm of a newer version is shown, but its meaning is unknown.
    for name in sorted(CLUSTER_ALARMS.keys() | {row.alarm for row in rows}):
        found = [_view_of_row(row, settings) for row in rows if row.alarm == name]
        yield from found or [_quiet_view(name, settings)]


def _settings(services: Services) -> Alarms | None:
    """Return the thresholds, or None if the stored thresholds are not valid for this release.

    The alarms are shown without thresholds then, because an operator needs the raised alarms. The
    tick logs an error for the same reason.
    """
    try:
        return alarm_settings(services.table)
    except ValueError:
        log.exception("the thresholds of alarms cannot be read")
        return None


def _view_of_row(row: AlarmRow, settings: Alarms | None) -> AlarmView:
    """Return the answer about an alarm with a row."""
    if row.cleared_ms is not None:
        return _quiet_view(row.alarm, settings, row.pool, row.cleared_ms)
    is_raised = row.raised_ms is not None
    return AlarmView(
        alarm=row.alarm,
        pool=row.pool,
        text=row.text,
        raised_ms=row.raised_ms,
        runbook=_source(row.alarm),
        state="raised" if is_raised else "pending",
        since_ms=row.raised_ms if is_raised else row.since_ms,
        value=row.value,
        threshold=_threshold(row.alarm, settings),
        meaning=_meaning(row.alarm),
    )


def _quiet_view(
    alarm: str, settings: Alarms | None, pool: str = "", since_ms: int | None = None
) -> AlarmView:
    """Return the answer about an alarm that is clear or off."""
    return AlarmView(
        alarm=alarm,
        pool=pool,
        text="",
        raised_ms=None,
        runbook=_source(alarm),
        state="off" if settings is not None and alarm in settings.off else "clear",
        since_ms=since_ms,
        value="",
        threshold=_threshold(alarm, settings),
        meaning=_meaning(alarm),
    )


def _source(alarm: str) -> str:
    """Return the path of an alarm's page in detcloud's sources, like `docs/runbook/lag.md`."""
    return f"{FOLDER}/{alarm}.md"


def _threshold(alarm: str, settings: Alarms | None) -> str:
    """Return the threshold of an alarm, or "" without valid thresholds."""
    return "" if settings is None else threshold_text(alarm, settings)


def _meaning(alarm: str) -> str:
    """Return the meaning of an alarm, or "" for an alarm of a newer version."""
    kind = CLUSTER_ALARMS.get(alarm)
    return "" if kind is None else kind.meaning
