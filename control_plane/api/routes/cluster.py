"""The cluster as a whole, and who asks."""

from control_plane.api.auth import Role
from control_plane.api.bodies import Body
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.services import Given
from control_plane.api.views import pool as pools

router = guarded_router("cluster")


class Who(Body):
    user: str
    role: Role


@router.get("/cluster")
@needs(*PEOPLE)
def get_cluster(services: Given) -> pools.Overview:
    return pools.overview(services)


@router.get("/whoami")
@needs(*PEOPLE)
def whoami(caller: Caller) -> Who:
    return Who(user=caller.user, role=caller.role)
