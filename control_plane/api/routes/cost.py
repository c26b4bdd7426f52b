"""The routes of reports about costs and the use of slots."""

from datetime import date

from control_plane.access.principals import USER_ROLES
from control_plane.api.day_parameters import report_days
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries.cost import CostGrouping, CostReport, cost_report
from control_plane.queries.usage import UsageGrouping, UsageReport, usage_report

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
    return cost_report(services, by, *report_days(services, since, until))


@router.get("/usage")
@require_role(*USER_ROLES)
def usage(
    services: ServicesParameter,
    by: UsageGrouping = UsageGrouping.EXPERIMENT,
    since: date | None = None,
    until: date | None = None,
) -> UsageReport:
    """Report the use of slots on the days from `since` to `until`, both included, in UTC.

    The days default as in cost reports. `by` chooses the lines of the report. Error: `invalid` if
    `since` is later than `until` or today, or more than 365 days before the last day.
    """
    return usage_report(services, by, *report_days(services, since, until))
