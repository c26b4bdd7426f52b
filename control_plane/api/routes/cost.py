"""What was spent, and on what."""

from datetime import date

from control_plane.api.errors import invalid
from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.services import Given
from control_plane.api.views.cost import By, CostReport, cost_report
from control_plane.fleet.bills import day_of

DAYS_MAX = 366

router = guarded_router("cost")


@router.get("/cost")
@needs(*PEOPLE)
def report(
    services: Given, by: By = By.EXPERIMENT, since: date | None = None, until: date | None = None
) -> CostReport:
    """From the beginning of the month to today, if nothing else is asked for."""
    today = day_of(services.now_ms())
    last = min(until or today, today)
    first = since or last.replace(day=1)
    if not 0 <= (last - first).days < DAYS_MAX:
        text = f"must be at most {DAYS_MAX - 1} days before until ({last}) and today, not {first}"
        raise invalid("since", text)
    return cost_report(services, by, first, last)
