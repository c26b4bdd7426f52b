"""Routes of the cluster as a whole, and of the caller's own identity."""

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries import pool as pools
from control_plane.queries.answer import Answer

router = guarded_router("cluster")


class CallerIdentity(Answer):
    """The user and the role of the caller's token."""

    user: str
    role: Role


@router.get("/cluster")
@require_role(*USER_ROLES)
def get_cluster(services: ServicesParameter) -> pools.ClusterOverview:
    return pools.cluster_overview(services)


@router.get("/whoami")
@require_role(*USER_ROLES)
def whoami(caller: Caller) -> CallerIdentity:
    return CallerIdentity(user=caller.user, role=caller.role)
