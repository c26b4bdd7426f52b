"""Routes of workspaces and projects, with the number of experiments in each."""

from typing import Annotated

from fastapi import Query

from control_plane.access.principals import USER_ROLES
from control_plane.actors.projects import NAME_CHARACTERS_MAX
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.project_names import check_group_name
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import projects

router = guarded_router("projects")

GroupName = Annotated[str | None, Query(max_length=NAME_CHARACTERS_MAX)]


@router.get("/workspaces")
@require_role(*USER_ROLES)
def list_workspaces(services: ServicesParameter) -> projects.WorkspaceList:
    """List the workspaces that have experiments, by name, with the numbers of experiments.

    The newest 20,000 experiments are counted, without commands, notebooks and shells.
    """
    return projects.list_workspaces(services)


@router.get("/projects")
@require_role(*USER_ROLES)
def list_projects(services: ServicesParameter, workspace: GroupName = None) -> projects.ProjectList:
    """List the projects that have experiments, by workspace and name, or of a single workspace.

    The newest 20,000 experiments are counted, without commands, notebooks and shells. The list of
    an unknown workspace is empty. Error: `invalid` for an invalid name.
    """
    check_group_name("workspace", workspace)
    return projects.list_projects(services, workspace)
