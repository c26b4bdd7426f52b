"""Lists of experiments: what they can be filtered and sorted by, and the workspaces and projects
that group them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from detcloud.client.experiment import Experiment

if TYPE_CHECKING:
    from detcloud.client.client import Client

SORT_FIELDS = ("id", "name", "state", "user", "progress", "metric", "cost", "submitted")
_PAGE_ITEMS = 500


class ExperimentFilters(TypedDict, total=False):
    """Filters of a list: all that are given must fit.

    `name` is a part of the name. `archived`: None for archived ones too, True for those only.
    `metadata` is by path, such as `{"data.version": 3}`. `kind`: `command` for those in place of
    experiments.
    """

    states: Sequence[str]
    user: str | None
    label: str | None
    name: str | None
    archived: bool | None
    workspace: str | None
    project: str | None
    metadata: Mapping[str, object] | Sequence[str] | None
    kind: str


class Workspace(TypedDict):
    """A workspace and its experiments, archived ones included; `open` ones have not ended."""

    workspace: str
    projects: int
    experiments: int
    open: int
    archived: int


class Project(TypedDict):
    """A project of a workspace and its experiments, counted as those of a workspace."""

    workspace: str
    project: str
    experiments: int
    open: int
    archived: int


def read_experiments(
    client: Client,
    filters: ExperimentFilters,
    sort_by: str,
    order_by: str,
    limit: int | None,
    on_left_out: Callable[[str], None] | None = None,
) -> Iterator[Experiment]:
    """Yield experiments; pages are fetched as they are needed."""
    query = {**_query(filters), "sort": sort_by, "order": order_by}
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
    """Report that an answer leaves out older experiments, by a warning or to the caller's function.

    Returns whether it leaves out any.
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


def metadata_filters(metadata: Mapping[str, object] | Sequence[str] | None) -> list[str] | None:
    """The filters of a query, `key=value`, from a mapping by path or as they are."""
    if not metadata:
        return None
    if isinstance(metadata, Mapping):
        import json

        return [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in metadata.items()
        ]
    return [metadata] if isinstance(metadata, str) else list(metadata)


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
        "kind": filters.get("kind"),
    }
