"""Determined's workspaces and projects, which are only names of experiments here.

A script makes them before the first experiment is in them; until then this process alone knows
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from detcloud.client import Client
from detcloud.client.experiment_list import Project as ProjectCounts
from detcloud.compatibility.client_errors import NotFoundException


class ExperimentSortBy(Enum):
    """The orders of lists of experiments."""

    ID = "id"
    START_TIME = "submitted"
    NAME = "name"
    STATE = "state"
    PROGRESS = "progress"
    SEARCHER_METRIC_VAL = "metric"


# The projects that this process made, by the workspaces that it made or made them in.
_made: dict[str, list[str]] = {}


@dataclass(frozen=True)
class ProjectId:
    """The names that identify a project: its workspace's and its own."""

    workspace: str
    project: str


@dataclass(frozen=True)
class Project:
    """A project of a workspace; names are its id."""

    name: str
    workspace_name: str
    n_experiments: int = 0
    n_active_experiments: int = 0

    @property
    def id(self) -> ProjectId:
        """The value that other functions take as `project_id`."""
        return ProjectId(self.workspace_name, self.name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Project.{name} is not supported by detcloud: a project is a name that experiments"
            " have; detcloud.Client().experiments(workspace=..., project=...) lists them"
        )


@dataclass(frozen=True)
class Workspace:
    """A workspace; its name is its id."""

    name: str
    _client: Client

    @property
    def id(self) -> str:
        """The name."""
        return self.name

    def list_projects(self) -> list[Project]:
        """The projects that experiments are in, and those that this process made."""
        found = [_project(one) for one in self._client.projects(self.name)]
        known = {one.name for one in found}
        made = _made.get(self.name, [])
        return [*found, *(Project(name, self.name) for name in made if name not in known)]

    def create_project(self, name: str, description: str | None = None) -> Project:
        """Make a name that experiments may have; a description of it is kept nowhere."""
        names = _made.setdefault(self.name, [])
        if name not in names:
            names.append(name)
        return self.get_project(name)

    def get_project(self, project_name: str) -> Project:
        """The project of that name; NotFoundException where there is none."""
        known = self.list_projects()
        for one in known:
            if one.name == project_name:
                return one
        raise _not_found(f"a project {project_name!r:.140}", known)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Workspace.{name} is not supported by detcloud: a workspace is a name that experiments"
            " have; `workspace` and `project` of a configuration name them"
        )


def remember_workspace(client: Client, name: str) -> Workspace:
    """Make a name that experiments may have."""
    _made.setdefault(name, [])
    return Workspace(name, client)


def read_workspaces(client: Client) -> list[Workspace]:
    """The workspaces that experiments are in, and those that this process made."""
    found = [one["workspace"] for one in client.workspaces()]
    made = [name for name in _made if name not in found]
    return [Workspace(name, client) for name in (*found, *made)]


def find_workspace(client: Client, name: str) -> Workspace:
    """The workspace of that name; DetcloudError where no experiment is in one."""
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
