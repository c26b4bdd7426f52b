"""The route of cost reports."""

from datetime import date

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.errors import invalid
from control_plane.fleet.bills import utc_day
from control_plane.queries.cost import CostGrouping, CostReport, cost_report

DAYS_MAX = 366

router = guarded_router("cost")


@router.get("/cost")
@require_role(*USER_ROLES)
def report(
    services: ServicesParameter,
    by: CostGrouping = CostGrouping.EXPERIMENT,
    since: date | None = None,
    until: date | None = None,
) -> CostReport:
    """Report the costs of the days from `since` to `until`, both included, in UTC.

    `until` defaults to today, and a later day counts as today. `since` defaults to the first day of
    the month of `until`. `by` chooses the lines of the report. Error: `invalid` if `since` is later
    than `until` or today, or more than 365 days before the last day.
    """
    today = utc_day(services.now_ms())
    last = min(until or today, today)
    first = since or last.replace(day=1)
    if not 0 <= (last - first).days < DAYS_MAX:
        text = f"must be at most {DAYS_MAX - 1} days before until ({last}) and today, not {first}"
        raise invalid("since", text)
    return cost_report(services, by, first, last)
