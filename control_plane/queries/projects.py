"""Queries of workspaces and projects, with the number of experiments in each."""

from collections import Counter
from dataclasses import dataclass, field

from control_plane.actors.experiment.state import LISTING
from control_plane.actors.records import JobKind, Status
from control_plane.queries.answer import Answer
from control_plane.queries.listed_facts import DecodedListings
from control_plane.services import Services
from control_plane.state.table import Row, StateTable

# The most rows of a query. A store may charge for each row read, so no query reads excess rows.
_PAGE_ROWS = 1_000
_FIRST, _LAST = " ", "\x7f"


class Project(Answer):
    """A project with the numbers of experiments.

    `experiments` counts all of them, archived experiments included. `open` counts the experiments
    that have not ended.
    """

    workspace: str
    project: str
    experiments: int
    open: int
    archived: int


class Workspace(Answer):
    """A workspace with the numbers of projects and experiments.

    `experiments`, `open` and `archived` are as in a `Project`.
    """

    workspace: str
    projects: int
    experiments: int
    open: int
    archived: int


class ProjectList(Answer):
    """Projects, sorted by workspace and name.

    Experiments with an id below `left_out_before` were not counted; null if all were counted.
    """

    items: list[Project]
    left_out_before: int | None = None


class WorkspaceList(Answer):
    """Workspaces, sorted by name.

    `left_out_before` is as in a `ProjectList`.
    """

    items: list[Workspace]
    left_out_before: int | None = None


@dataclass
class _Counts:
    """The numbers of experiments in a project."""

    experiments: int = 0
    open: int = 0
    """The experiments that have not ended."""
    archived: int = 0

    def add(self, state: str, *, is_archived: bool, number: int) -> None:
        """Count `number` experiments that are in this state."""
        self.experiments += number
        self.open += 0 if Status(state).is_final else number
        self.archived += number if is_archived else 0


@dataclass
class _ProjectCounts:
    """The numbers of experiments in all projects."""

    projects: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    """The numbers by workspace and project."""
    left_out_before: int | None = None
    """The id below which no experiment was counted; None if all were counted."""


def list_projects(services: Services, workspace: str | None) -> ProjectList:
    """Return the projects of a workspace with counts; None stands for all workspaces.

    Only the newest `counted_experiments_max` experiments count. Empty for an unknown workspace.
    """
    census = _count_experiments(services)
    items = [
        Project(workspace=parent, project=name, **vars(counts))
        for (parent, name), counts in sorted(census.projects.items())
        if workspace in (None, parent)
    ]
    return ProjectList(items=items, left_out_before=census.left_out_before)


def list_workspaces(services: Services) -> WorkspaceList:
    """Return the workspaces of the newest `counted_experiments_max` experiments, with counts. Empty
    without experiments.
    """
    census = _count_experiments(services)
    sums: dict[str, Counter[str]] = {}
    for (workspace, _), counts in sorted(census.projects.items()):
        sums.setdefault(workspace, Counter()).update({"projects": 1, **vars(counts)})
    items = [
        Workspace(
            workspace=workspace,
            projects=totals["projects"],
            experiments=totals["experiments"],
            open=totals["open"],
            archived=totals["archived"],
        )
        for workspace, totals in sums.items()
    ]
    return WorkspaceList(items=items, left_out_before=census.left_out_before)


def _count_experiments(services: Services) -> _ProjectCounts:
    """Count the newest `counted_experiments_max` experiments by workspace and project.

    Commands, notebooks and shells are not counted.
    """
    census = _ProjectCounts()
    counted_max = services.limits.counted_experiments_max
    rows, census.left_out_before = read_newest_listings(services.table, counted_max)
    groups = Counter(
        (entry.workspace, entry.project, entry.state, entry.archived)
        for entry in services.cache_of(DecodedListings).decode([row.body for row in rows])
        if entry.kind is JobKind.EXPERIMENT
    )
    for (workspace, project, state, is_archived), number in groups.items():
        counts = census.projects.setdefault((workspace, project), _Counts())
        counts.add(state, is_archived=is_archived, number=number)
    return census


def read_newest_listings(table: StateTable, most: int) -> tuple[list[Row], int | None]:
    """Read the list's rows of the `most` newest experiments, newest first. Other kinds of job count
    too.

    Returns:
        The rows, and the id below which no experiment was read. The id is None if all experiments
        were read.
    """
    rows: list[Row] = []
    last = _LAST
    while True:
        size = min(_PAGE_ROWS, most + 1 - len(rows))
        page = table.query(LISTING, _FIRST, last, limit=size, descending=True)
        rows += page.rows
        if len(rows) > most:
            return rows[:most], int(rows[most - 1].key.sort)
        if page.next_sort is None:
            return rows, None
        last = page.next_sort
