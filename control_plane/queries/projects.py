"""Workspaces and projects: the names that experiments are grouped by, with how many are in each."""

from collections import Counter
from dataclasses import dataclass, field

from control_plane.actors.experiment.listing import decode_listings
from control_plane.actors.experiment.state import LISTING
from control_plane.actors.records import JobKind, Status
from control_plane.queries.answer import Answer
from control_plane.state.table import Row, StateTable

COUNTED_MAX = 20_000
"""The newest experiments that are counted; each is a row of the list, which is all that is read."""
# A table that charges by the row reads no more than a page holds.
_PAGE_ROWS = 1_000
_FIRST, _LAST = " ", "\x7f"


class Project(Answer):
    """A project and its experiments, archived ones included; `open` ones have not ended."""

    workspace: str
    project: str
    experiments: int
    open: int
    archived: int


class Workspace(Answer):
    """A workspace, its projects and its experiments, counted as those of a project."""

    workspace: str
    projects: int
    experiments: int
    open: int
    archived: int


class ProjectList(Answer):
    """Projects by workspace and name. Experiments with an id below `left_out_before` were not
    counted; null where all were.
    """

    items: list[Project]
    left_out_before: int | None = None


class WorkspaceList(Answer):
    """Workspaces by name; `left_out_before` as in a ProjectList."""

    items: list[Workspace]
    left_out_before: int | None = None


@dataclass
class _Counts:
    experiments: int = 0
    open: int = 0
    archived: int = 0

    def add(self, state: str, *, is_archived: bool, number: int) -> None:
        self.experiments += number
        self.open += 0 if Status(state).is_final else number
        self.archived += number if is_archived else 0


@dataclass
class _ProjectCounts:
    projects: dict[tuple[str, str], _Counts] = field(default_factory=dict)
    left_out_before: int | None = None


def list_projects(table: StateTable, workspace: str | None) -> ProjectList:
    """List the projects, or those of one workspace."""
    census = _count_experiments(table)
    items = [
        Project(workspace=of, project=name, **vars(counts))
        for (of, name), counts in sorted(census.projects.items())
        if workspace in (None, of)
    ]
    return ProjectList(items=items, left_out_before=census.left_out_before)


def list_workspaces(table: StateTable) -> WorkspaceList:
    """List the workspaces."""
    census = _count_experiments(table)
    sums: dict[str, Counter[str]] = {}
    for (of, _), counts in sorted(census.projects.items()):
        sums.setdefault(of, Counter()).update({"projects": 1, **vars(counts)})
    items = [
        Workspace(
            workspace=of,
            projects=sum_of["projects"],
            experiments=sum_of["experiments"],
            open=sum_of["open"],
            archived=sum_of["archived"],
        )
        for of, sum_of in sums.items()
    ]
    return WorkspaceList(items=items, left_out_before=census.left_out_before)


def _count_experiments(table: StateTable) -> _ProjectCounts:
    """Count the newest experiments by workspace and project."""
    census = _ProjectCounts()
    rows, census.left_out_before = read_newest_listings(table, COUNTED_MAX)
    groups = Counter(
        (entry.workspace, entry.project, entry.state, entry.archived)
        for entry in decode_listings(row.body for row in rows)
        if entry.kind is JobKind.EXPERIMENT
    )
    for (workspace, project, state, is_archived), number in groups.items():
        counts = census.projects.setdefault((workspace, project), _Counts())
        counts.add(state, is_archived=is_archived, number=number)
    return census


def read_newest_listings(table: StateTable, most: int) -> tuple[list[Row], int | None]:
    """Read the rows of the newest experiments in the list, `most` at most, newest first; with them
    the id of the last one if there are more, which are older.
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
