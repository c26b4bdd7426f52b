"""The numbers of experiments of each project that match a filter."""

from collections import Counter

from control_plane.queries.answer import Answer
from control_plane.queries.experiment_list import ExperimentFilter, read_matching_rows
from control_plane.services import Services


class ExperimentGroup(Answer):
    """A project with the number of experiments that match the filter."""

    workspace: str
    project: str
    experiments: int


class ExperimentGroups(Answer):
    """The projects with matching experiments, by workspace and name.

    Experiments with an id below `left_out_before` were not counted; null if all were counted. With
    `is_exact` false, some counted active experiments may not match.
    """

    items: list[ExperimentGroup]
    left_out_before: int | None
    is_exact: bool


def count_groups(services: Services, shown: ExperimentFilter) -> ExperimentGroups:
    """Count the newest experiments that match the filter in each project.

    Raises:
        RequestError: invalid, for an unknown state or kind.
    """
    found = read_matching_rows(services, shown)
    counts = Counter((entry.row.workspace, entry.row.project) for entry in found.entries)
    items = [
        ExperimentGroup(workspace=workspace, project=project, experiments=number)
        for (workspace, project), number in sorted(counts.items())
    ]
    return ExperimentGroups(
        items=items, left_out_before=found.left_out_before, is_exact=found.is_exact
    )
