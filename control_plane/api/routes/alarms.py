"""The route of the cluster's alarms."""

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries.alarm import AlarmList
from control_plane.queries.alarm import list_alarms as read_alarms

router = guarded_router("alarms")


@router.get("/alarms")
@require_role(*USER_ROLES)
def list_alarms(services: ServicesParameter) -> AlarmList:
    """List the raised alarms that the cluster decides, by name and pool."""
    return read_alarms(services)
