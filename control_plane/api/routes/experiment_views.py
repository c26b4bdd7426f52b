"""Routes of saved views of the list of experiments."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response
from pydantic import Field

from control_plane.access.ownership import FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.actors.projects import NAME_CHARACTERS_MAX
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.project_names import check_group_name
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries.answer import Answer
from control_plane.queries.experiment_columns import COLUMN_CHARACTERS_MAX, parse_column
from control_plane.queries.experiment_order import Order, parse_sort
from control_plane.queries.experiment_terms import narrow_to_workspace, parse_conditions
from control_plane.queries.filter_text import CHARACTERS_MAX
from control_plane.queries.pages import Page
from control_plane.text_forms import text_form
from control_plane.usecases.experiment_views import (
    ViewRecord,
    delete_view,
    find_owned_view,
    list_views,
    put_view,
)
from control_plane.usecases.idempotency import ExtraWrites

VIEW_COLUMNS_MAX = 40

router = guarded_router("experiment-views")

ViewName = Annotated[
    str,
    Path(
        pattern=text_form(
            r"^[^\s\p{C}/.](?:[^\p{C}/]{0,62}[^\s\p{C}/])?$",
            "1 to 64 printable characters without /, of which the first is no dot and the first"
            " and the last are no spaces",
        )
    ),
]
Owner = Annotated[str | None, Query(max_length=200)]
ColumnText = Annotated[str, Field(min_length=1, max_length=COLUMN_CHARACTERS_MAX)]


class ViewBody(RequestBody):
    """The body of `PUT /experiment-views/{name}`; docs/api.md describes the fields."""

    filter: Annotated[str, Field(max_length=CHARACTERS_MAX)] = ""
    columns: Annotated[list[ColumnText], Field(max_length=VIEW_COLUMNS_MAX)] = []
    sort: Annotated[str, Field(max_length=COLUMN_CHARACTERS_MAX)] = "id"
    order: Order = "desc"
    group: Literal["", "project"] = ""
    shared: bool = False
    workspace: Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)] = ""


class ExperimentView(Answer):
    """A saved view. `user` is the owner.

    Other users see the view if `shared` is true, or if it has a workspace.
    """

    name: str
    user: str
    shared: bool
    filter: str
    columns: list[str]
    sort: str
    order: str
    group: str
    created_ms: int
    updated_ms: int
    workspace: str


def _view_in_path(
    name: ViewName, caller: Caller, services: ServicesParameter, user: Owner = None
) -> FindOwned:
    return partial(find_owned_view, services.table, user or caller.user, name)


@router.get("/experiment-views")
@require_role(*USER_ROLES)
def list_all(
    caller: Caller,
    services: ServicesParameter,
    page: PageParameters,
    workspace: Annotated[str | None, Query(max_length=NAME_CHARACTERS_MAX)] = None,
) -> Page[ExperimentView]:
    """List the caller's views and the shared views of other users, by owner and name.

    `workspace` selects the views of this workspace. Error: `invalid` for a wrong name.
    """
    check_group_name("workspace", workspace)
    views, cursor = list_views(services.table, caller, page, workspace)
    return Page(items=[_answer(view) for view in views], next_cursor=cursor)


@router.put("/experiment-views/{name}", response_model=ExperimentView)
@require_role(*USER_ROLES, changes=only_own)
def put(
    name: ViewName,
    body: ViewBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Save a view of the caller, or replace the caller's view with this name; return the view.

    A view with a `workspace` is for the users of the workspace. Its filter gets the term
    `workspace:NAME`, unless it has the term. Errors: `invalid` for a wrong filter, column or order,
    and for a `shared` view with a workspace. `conflict` if the caller has 50 other views.
    `unavailable` if other requests keep changing the view.
    """
    if body.shared and body.workspace:
        raise invalid("workspace", "must be empty if shared is true", "leave one of them out")
    now_ms = services.now_ms()
    parse_conditions(body.filter, caller.user, now_ms)
    filter_text = body.filter
    if body.workspace:
        check_group_name("workspace", body.workspace)
        filter_text = narrow_to_workspace(body.filter, body.workspace)
        parse_conditions(filter_text, caller.user, now_ms)
    parse_sort(body.sort)
    for column in body.columns:
        if ":" in column:
            parse_column(column, "columns")
    view = ViewRecord(
        name=name,
        user=caller.user,
        shared=body.shared,
        filter=filter_text,
        columns=tuple(body.columns),
        sort=body.sort,
        order=body.order,
        group=body.group,
        created_ms=now_ms,
        updated_ms=now_ms,
        workspace=body.workspace,
    )

    def effect(extra_writes: ExtraWrites) -> object:
        record = put_view(services.table, view, lambda record: extra_writes(_reply(record)))
        return _reply(record)

    return answer_response(request.execute(services, effect, _answer_from_reply))


@router.delete("/experiment-views/{name}", response_model=ExperimentView)
@require_role(*USER_ROLES, changes=_view_in_path)
def delete(
    name: ViewName,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
    user: Owner = None,
) -> Response:
    """Delete a view of the caller, or of the `user`, and return the deleted view.

    Errors: `not_found` for an unknown view. `forbidden` for another user's view, except for admins.
    `unavailable` if other requests keep changing the view.
    """
    owner = user or caller.user

    def effect(extra_writes: ExtraWrites) -> object:
        record = delete_view(
            services.table, owner, name, caller, lambda record: extra_writes(_reply(record))
        )
        return _reply(record)

    return answer_response(request.execute(services, effect, _answer_from_reply))


def _reply(record: ViewRecord) -> dict[str, Any]:
    return _answer(record).model_dump()


def _answer_from_reply(reply: dict[str, Any]) -> ExperimentView:
    return ExperimentView(**reply)


def _answer(record: ViewRecord) -> ExperimentView:
    return ExperimentView(**vars(record) | {"columns": list(record.columns)})
