"""Saved views of the list of experiments: rows, ownership and changes.

A view belongs to the user who saved it. Other users see a view if its owner shares it with all
users or with a workspace. Workspaces are names without members, so every user sees the views of a
workspace. The filter of such a view is narrowed to the workspace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import quote

from control_plane.access.ownership import Action, OwnedObject, check_may_change
from control_plane.access.principals import Principal
from control_plane.errors import Code, RequestError
from control_plane.queries.pages import PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Delete, Key, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put

VIEWS = user_rows.EXPERIMENT_VIEW.partition
VIEWS_MAX = 50
"""The most views of a user. Concurrent requests may exceed the limit by a few."""


@dataclass(frozen=True)
class ViewRecord:
    """The stored row of a view."""

    name: str
    """The name, unique among the views of the owner."""
    user: str
    """The user who saved the view and owns it."""
    shared: bool
    """Whether other users see the view."""
    filter: str
    """The text of the filter."""
    columns: tuple[str, ...]
    """The shown columns, in order: fields of an experiment, or metrics and hyperparameters."""
    sort: str
    order: str
    """`asc` or `desc`."""
    group: str
    """The field that groups the rows, or ""."""
    created_ms: int
    updated_ms: int
    workspace: str = ""
    """The workspace whose users the view is for, or ""."""

    def is_seen_by(self, user: str) -> bool:
        """Return whether a user sees the view in lists."""
        return self.shared or bool(self.workspace) or self.user == user


ViewExtraWrites = Callable[[ViewRecord], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the view."""

_CODEC = JsonCodec(user_rows.EXPERIMENT_VIEW, ViewRecord, {"columns": tuple}, ensure_ascii=False)


def decode_view(body: bytes) -> ViewRecord:
    """Decode the body of a view's row. Ignore fields of newer versions."""
    return _CODEC.decode(body)


def list_views(
    table: StateTable, caller: Principal, request: PageRequest, workspace: str | None = None
) -> tuple[list[ViewRecord], str | None]:
    """Return a page of the views that the caller sees, and the cursor of the next page.

    The views are sorted by owner, then by name. The cursor is None on the last page.

    Args:
        table: the state table.
        caller: the user.
        request: the requested page.
        workspace: leave out views that are not of this workspace. None: all views.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """

    def is_wanted(row: Row) -> bool:
        view = decode_view(row.body)
        return view.is_seen_by(caller.user) and workspace in (None, view.workspace)

    rows, cursor = read_row_page(table, VIEWS, request, is_wanted=is_wanted)
    return [decode_view(row.body) for row in rows], cursor


def owned_view(view: ViewRecord) -> OwnedObject:
    """Return the ownership of a view."""
    return OwnedObject(f"view {view.name}", (view.user,), "save your own view")


def find_owned_view(table: StateTable, user: str, name: str) -> tuple[OwnedObject, ...]:
    """Return the ownership of a user's view, as a tuple. Empty if the view does not exist."""
    row = table.get(_key(user, name))
    return () if row is None else (owned_view(decode_view(row.body)),)


def put_view(table: StateTable, view: ViewRecord, extra_writes: ViewExtraWrites) -> ViewRecord:
    """Create or replace a view of `view.user`; return the stored view.

    An existing view keeps its time of creation, and `updated_ms` increases.

    Args:
        table: the state table.
        view: the new view.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: conflict, if the user has VIEWS_MAX other views; unavailable, if other
            requests keep changing the view.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    key = _key(view.user, view.name)

    def change(row: Row | None) -> tuple[ViewRecord, tuple[Write, ...]]:
        stored = view
        if row is None:
            _check_count(table, view.user)
        else:
            former = decode_view(row.body)
            updated_ms = max(view.updated_ms, former.updated_ms + 1)
            stored = replace(view, created_ms=former.created_ms, updated_ms=updated_ms)
        put = replacing_put(key, row, _CODEC.encode(stored), view.updated_ms)
        return stored, (put, *extra_writes(stored))

    return change_row(table, key, change, f"view {view.name}")


def delete_view(
    table: StateTable, user: str, name: str, caller: Principal, extra_writes: ViewExtraWrites
) -> ViewRecord:
    """Delete a user's view in a commit with the extra writes; return the deleted view.

    Raises:
        RequestError: not_found, if the view does not exist; forbidden, if another user owns the
            view and the caller is not an admin; unavailable, if other requests keep changing the
            view.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[ViewRecord, tuple[Write, ...]]:
        if row is None:
            raise RequestError(Code.NOT_FOUND, f"{user} has no view {name!r}")
        view = decode_view(row.body)
        check_may_change(caller, owned_view(view), Action.DELETE)
        return view, (Delete(row.key, row.revision), *extra_writes(view))

    return change_row(table, _key(user, name), change, f"view {name}")


def _check_count(table: StateTable, user: str) -> None:
    """Raise RequestError conflict if the user has VIEWS_MAX views."""
    first = f"{quote(user, safe='')}#"
    page = table.query(VIEWS, first, f"{first[:-1]}$", limit=VIEWS_MAX)
    if len(page.rows) >= VIEWS_MAX:
        text = f"{user} has {VIEWS_MAX} views, the most of a user: delete a view first"
        raise RequestError(Code.CONFLICT, text)


def _key(user: str, name: str) -> Key:
    """Return the key of a user's view. Quoted names are ASCII, as reads of ranges expect."""
    return Key(VIEWS, f"{quote(user, safe='')}#{quote(name, safe='')}")
