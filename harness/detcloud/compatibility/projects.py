"""Determined's workspaces and projects, which are only names of experiments here."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Project:
    """A project of a workspace; it has no id of its own."""

    name: str
    workspace_name: str
    n_experiments: int
    n_active_experiments: int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Project.{name} is not supported by detcloud: a project is a name that experiments"
            " have; detcloud.Client().experiments(workspace=..., project=...) lists them"
        )


@dataclass(frozen=True)
class Workspace:
    """A workspace; it has no id of its own."""

    name: str
    _client: Client

    def list_projects(self) -> list[Project]:
        """The projects that experiments are in."""
        return [_project(one) for one in self._client.projects(self.name)]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"Workspace.{name} is not supported by detcloud: a workspace is a name that experiments"
            " have; `workspace` and `project` of a configuration name them"
        )


def read_workspaces(client: Client) -> list[Workspace]:
    """The workspaces that experiments are in."""
    return [Workspace(one["workspace"], client) for one in client.workspaces()]


def find_workspace(client: Client, name: str) -> Workspace:
    """The workspace of that name; DetcloudError where no experiment is in one."""
    known = read_workspaces(client)
    for one in known:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in known) or "none"
    raise NotFoundException(
        404, "not_found", f"no experiment is in a workspace {name!r:.140}; there is {names}"
    )


def _project(counts: ProjectCounts) -> Project:
    return Project(counts["project"], counts["workspace"], counts["experiments"], counts["open"])
