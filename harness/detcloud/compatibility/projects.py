"""Determined's workspaces and projects, which detcloud has only as names of experiments.

Scripts create them before any experiment has the names. Until then, only this process lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from detcloud.client import Client
from detcloud.client.experiment_list import Project as ProjectCounts
from detcloud.compatibility.client_errors import NotFoundException
from detcloud.compatibility.handles import missing_name_error


class ExperimentSortBy(Enum):
    """The fields by which lists of experiments are sorted."""

    ID = "id"
    START_TIME = "submitted"
    NAME = "name"
    STATE = "state"
    PROGRESS = "progress"
    SEARCHER_METRIC_VAL = "metric"


_MOVE = (
    "use Experiment.move_to_project(WORKSPACE, PROJECT) for each experiment; a project is a name"
)
_DESCRIBE = "use Experiment.set_description(TEXT); a project is a name without a text"
INSTEAD_OF_PROJECT = {
    "list_experiments": "use list_experiments(project_id=Project.id)",
    "set_name": _MOVE,
    "set_key": _MOVE,
    "key": "use Project.name",
    "username": "use list_experiments(project_id=Project.id) and the user of each experiment",
    "description": _DESCRIBE,
    "set_description": _DESCRIBE,
    "notes": _DESCRIBE,
    "add_note": _DESCRIBE,
    "remove_note": _DESCRIBE,
    "archived": "use Experiment.archived of each experiment",
    "archive": "use Experiment.archive() for each experiment",
    "unarchive": "use Experiment.unarchive() for each experiment",
}
INSTEAD_OF_WORKSPACE = {
    "list_pools": "use detcloud.Client().resource_pools(); all workspaces share all pools",
    "delete_project": _MOVE,
}

# The projects that this process created, by workspace. Created workspaces may have none.
_made: dict[str, list[str]] = {}


@dataclass(frozen=True)
class ProjectId:
    """The id of a project: the names of the workspace and the project."""

    workspace: str
    project: str


@dataclass(frozen=True)
class Project:
    """A project of a workspace.

    Names without a counterpart raise AttributeError with the replacement.
    """

    name: str
    workspace_name: str
    n_experiments: int = 0
    """The number of experiments when the project was listed."""
    n_active_experiments: int = 0
    """The number of experiments that had not ended."""

    @property
    def id(self) -> ProjectId:
        """The value that other functions accept as `project_id`."""
        return ProjectId(self.workspace_name, self.name)

    def reload(self) -> None:
        """Do nothing: the counts remain as of the time of the listing."""

    @property
    def workspace_id(self) -> str:
        """The name of the workspace."""
        return self.workspace_name

    def __getattr__(self, name: str) -> Any:
        raise missing_name_error("Project", name, INSTEAD_OF_PROJECT)


@dataclass(frozen=True)
class Workspace:
    """A workspace. The name is also the id.

    Names without a counterpart raise AttributeError with the replacement.
    """

    name: str
    _client: Client

    @property
    def id(self) -> str:
        """The name."""
        return self.name

    def list_projects(self) -> list[Project]:
        """Return the projects that have experiments, and all that this process created."""
        found = [_project(one) for one in self._client.projects(self.name)]
        known = {one.name for one in found}
        made = _made.get(self.name, [])
        return [*found, *(Project(name, self.name) for name in made if name not in known)]

    def reload(self) -> None:
        """Do nothing: a workspace is a name, which does not change."""

    def create_project(self, name: str, description: str | None = None) -> Project:
        """Return a project with this name, and list it in this process. `description` is not
        stored.
        """
        names = _made.setdefault(self.name, [])
        if name not in names:
            names.append(name)
        return self.get_project(name)

    def get_project(self, project_name: str) -> Project:
        """Return the project with this name. Raises NotFoundException if it is not in the list."""
        known = self.list_projects()
        for one in known:
            if one.name == project_name:
                return one
        raise _not_found(f"a project {project_name!r:.140}", known)

    def __getattr__(self, name: str) -> Any:
        raise missing_name_error("Workspace", name, INSTEAD_OF_WORKSPACE)


def remember_workspace(client: Client, name: str) -> Workspace:
    """Return a workspace with this name, and list it in this process."""
    _made.setdefault(name, [])
    return Workspace(name, client)


def read_workspaces(client: Client) -> list[Workspace]:
    """Return the workspaces that have experiments, and those that this process created."""
    found = [one["workspace"] for one in client.workspaces()]
    made = [name for name in _made if name not in found]
    return [Workspace(name, client) for name in (*found, *made)]


def find_workspace(client: Client, name: str) -> Workspace:
    """Return the workspace with this name. Raises NotFoundException if it is not in the list."""
    known = read_workspaces(client)
    for one in known:
        if one.name == name:
            return one
    raise _not_found(f"a workspace {name!r:.140}", known)


def _not_found(what: str, known: Sequence[Workspace | Project]) -> NotFoundException:
    names = ", ".join(one.name for one in known) or "none"
    return NotFoundException(404, "not_found", f"no experiment is in {what}; there is {names}")


def _project(counts: ProjectCounts) -> Project:
    return Project(counts["project"], counts["workspace"], counts["experiments"], counts["open"])
