"""The routes of the cluster's alarms and the runbook."""

from typing import Annotated, Literal

from fastapi import Path

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import alarm as alarms

router = guarded_router("alarms")


@router.get("/alarms")
@require_role(*USER_ROLES)
def list_alarms(
    services: ServicesParameter, state: Literal["raised", "all"] = "raised"
) -> alarms.AlarmList:
    """List the alarms that the cluster decides, by name and pool.

    By default, the raised alarms are listed. `state=all` also lists alarms that are pending, clear
    or off.
    """
    return alarms.list_alarms(services, raised_only=state == "raised")


@router.get("/alarms/{alarm}")
@require_role(*USER_ROLES)
def describe(
    alarm: Annotated[str, Path(max_length=100)], services: ServicesParameter
) -> alarms.AlarmDescription:
    """Return the states of an alarm, and the alarm's page of the runbook.

    The runbook also has the alarms that a cloud evaluates. Errors: `not_found` for an unknown
    alarm.
    """
    return alarms.describe_alarm(services, alarm)
