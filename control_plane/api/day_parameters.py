"""The days of a report, from the parameters `since` and `until`."""

from datetime import date

from control_plane.errors import invalid
from control_plane.fleet.bills import utc_day
from control_plane.services import Services

DAYS_MAX = 366


def report_days(services: Services, since: date | None, until: date | None) -> tuple[date, date]:
    """Return the first and the last day of a report, in UTC.

    `until` defaults to today, and a later day counts as today. `since` defaults to the first day of
    the month of `until`.

    Raises:
        RequestError: invalid, if `since` is later than the last day, or more than 365 days before.
    """
    today = utc_day(services.now_ms())
    last = min(until or today, today)
    first = since or last.replace(day=1)
    if not 0 <= (last - first).days < DAYS_MAX:
        text = f"must be at most {DAYS_MAX - 1} days before until ({last}) and today, not {first}"
        raise invalid("since", text)
    return first, last
