"""Lists of experiments: filters, order, and the workspaces and projects that group experiments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from detcloud.client.handles import Experiment
from detcloud.client.resource import metadata_filters

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

SORT_FIELDS = ("id", "name", "state", "user", "progress", "metric", "cost", "submitted")
_PAGE_ITEMS = 500


class ExperimentFilters(TypedDict, total=False):
    """The filters of a list. An experiment must match every given filter."""

    states: Sequence[str]
    """Any of these states: conditions such as `queued`, or stored states such as `ACTIVE`. A single
    text is accepted too.
    """
    has_failed_trials: bool | None
    """Whether a trial of the experiment has failed. None (the default): both."""
    user: str | None
    """The user who submitted the experiment."""
    label: str | None
    """A label of the experiment."""
    name: str | None
    """A part of the name."""
    archived: bool | None
    """False (the default) for experiments that are not archived, True for archived ones, None for
    both.
    """
    workspace: str | None
    """The name of the workspace."""
    project: str | None
    """The name of the project."""
    metadata: Mapping[str, object] | Sequence[str] | None
    """Values of the metadata by path, such as `{"data.version": 3}` or `["data.version=3"]`."""
    filter: str | None
    """A filter such as `state:running metric:loss<0.3 lr>0.01 label:x user:me`."""
    kind: str
    """`experiment` (the default), `command`, `notebook`, `shell`, several of them as
    `command,shell`, or `all`.
    """


class Workspace(TypedDict):
    """A workspace with the number of projects and experiments. Commands are not counted."""

    workspace: str
    """The name."""
    projects: int
    """The number of projects with experiments."""
    experiments: int
    """All experiments, including archived ones."""
    open: int
    """Experiments that have not ended."""
    archived: int
    """Archived experiments."""


class Project(TypedDict):
    """A project of a workspace, with the counts of a Workspace."""

    workspace: str
    """The name of the workspace."""
    project: str
    """The name."""
    experiments: int
    """All experiments, including archived ones."""
    open: int
    """Experiments that have not ended."""
    archived: int
    """Archived experiments."""


def read_experiments(
    client: Requester,
    filters: ExperimentFilters,
    sort_by: str,
    order_by: str,
    limit: int | None,
    on_left_out: Callable[[str], None] | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Experiment]:
    """Yield the first `limit` experiments that match, or all. Pages are fetched when needed.

    Raises ApiError and Unreachable during the iteration.

    Args:
        filters: the conditions that an experiment must meet.
        sort_by: the API's name of the sorted value, for example `id` or `metric:loss`.
        order_by: `asc` or `desc`.
        limit: the most experiments to yield; None for all.
        on_left_out: called once with a sentence if the cluster has more experiments than it
            searches in a request, and leaves out the oldest. None: a Python warning.
        columns: the metrics and hyperparameters in the field `values` of each experiment.
    """
    query = {
        **_query(filters),
        "sort": sort_by,
        "order": order_by,
        "columns": list(columns) or None,
    }
    cursor: str | None = None
    told = False
    while limit is None or limit > 0:
        size = _PAGE_ITEMS if limit is None else min(limit, _PAGE_ITEMS)
        page = client.get("/experiments", **query, limit=size, cursor=cursor)
        if not told:
            told = report_omitted(page, on_left_out)
        yield from (Experiment(client, item) for item in page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return
        limit = None if limit is None else limit - len(page["items"])


def report_omitted(
    answer: Mapping[str, Any], on_left_out: Callable[[str], None] | None = None
) -> bool:
    """Report a list that leaves out older experiments, and return whether experiments are left out.

    Args:
        answer: the cluster's answer. `left_out_before` is an id, or None if the list is complete.
        on_left_out: called with a sentence. With None, the sentence becomes a Python warning.
    """
    number = answer.get("left_out_before")
    if number is None:
        return False
    text = (
        f"there are more experiments than the cluster looks at in one request: those before"
        f" {number} are left out"
    )
    if on_left_out is None:
        warnings.warn(text, stacklevel=3)
    else:
        on_left_out(text)
    return True


def _query(filters: ExperimentFilters) -> dict[str, object]:
    states = filters.get("states", ())
    archived = filters.get("archived", False)
    return {
        "state": ",".join([states] if isinstance(states, str) else states) or None,
        "user": filters.get("user"),
        "label": filters.get("label"),
        "name": filters.get("name"),
        "archived": {None: "all", True: "true", False: None}[archived],
        "workspace": filters.get("workspace"),
        "project": filters.get("project"),
        "metadata": metadata_filters(filters.get("metadata")),
        "filter": filters.get("filter") or None,
        "kind": filters.get("kind"),
        "has_failed_trials": {None: None, True: "true", False: "false"}[
            filters.get("has_failed_trials")
        ],
    }
