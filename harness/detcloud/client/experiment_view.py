"""The handle of a saved view of the list of experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from detcloud.client.resource import Field, Resource, path_segment
from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from detcloud.client.requester import Requester


class ExperimentView(Resource):
    """A saved view: a filter, an order, columns and a grouping of the list of experiments."""

    name = Field[str]("The name, unique among the views of the owner.")
    user = Field[str]("The owner, who saved the view.")
    shared = Field[bool]("Whether the view is for all users of the cluster.")
    workspace = Field[str]("The workspace that the view is for; empty without a workspace.")
    filter = Field[str]("The filter, such as `state:running lr>0.01`.")
    columns = Field[list[str]]("The shown columns: fields, `metric:NAME` and `hparam:PATH`.")
    sort = Field[str]("The sorted field or column.")
    order = Field[str]("asc or desc.")
    group = Field[str]("project if the list is grouped by project, else empty.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    updated_ms = Field[int]("The time of the last change, in epoch milliseconds.")

    def __repr__(self) -> str:
        return f"ExperimentView({self.user + '/' + self.name!r})"

    @property
    def value_columns(self) -> list[str]:
        """The columns that are metrics or hyperparameters, such as `metric:loss`."""
        return [column for column in self.columns if ":" in column]

    def delete(self) -> None:
        """Delete the view. Views of other users can only be deleted by an admin."""
        self._client.delete(view_path(self.name), user=self.user)


class ViewContent(TypedDict, total=False):
    """The content of a view to save."""

    filter: str
    """The filter, such as `state:running lr>0.01`. Default: all experiments."""
    columns: Sequence[str]
    """The shown columns. Default: the columns that the page shows first."""
    sort_by: str
    """The sorted field or column. Default: `id`."""
    order_by: str
    """`asc` or `desc`. Default: `desc`."""
    group_by: str
    """`project` groups the list. Default: no groups."""
    shared: bool
    """Whether the view is for all users of the cluster."""
    workspace: str
    """The workspace that the view is for. The cluster narrows the filter to the workspace."""


def find_view(client: Requester, text: str) -> ExperimentView:
    """Return the view with the name `text`, or the view NAME of USER for the text `USER/NAME`.

    If several users have a view of the name, the caller's own view is returned.

    Raises:
        DetcloudError: no view matches, or views of several other users have the name.
    """
    user, _, name = text.rpartition("/")
    views = [ExperimentView(client, item) for item in client.items("/experiment-views")]
    matches = [view for view in views if view.name == name and user in ("", view.user)]
    if len(matches) > 1:
        me = client.get("/whoami")["user"]
        matches = [view for view in matches if view.user == me] or matches
    if len(matches) == 1:
        return matches[0]
    if matches:
        owners = ", ".join(f"{view.user}/{name}" for view in matches)
        raise DetcloudError(f"several views have the name {name!r}; choose one of {owners}")
    known = ", ".join(f"{view.user}/{view.name}" for view in views) or "no saved view"
    raise DetcloudError(f"there is no view {text!r}; there is {known}")


def save_view(client: Requester, name: str, content: ViewContent) -> ExperimentView:
    """Create a view of the caller, or replace the caller's view with this name; return the view."""
    body = {
        "filter": content.get("filter", ""),
        "columns": list(content.get("columns", ())),
        "sort": content.get("sort_by", "id"),
        "order": content.get("order_by", "desc"),
        "group": content.get("group_by", ""),
        "shared": content.get("shared", False),
    }
    # Clusters of earlier versions refuse the field.
    if workspace := content.get("workspace"):
        body["workspace"] = workspace
    return ExperimentView(client, client.put(view_path(name), body))


def view_path(name: str) -> str:
    """Return the view's path below /api/v1. Raises DetcloudError for an impossible name."""
    return f"/experiment-views/{path_segment(name)}"
