"""Routes of agent users, the users of the machines that trials run as."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from control_plane.access.agent_users import CODEC, PARTITION, AgentUserKind, AgentUserRecord
from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page
from control_plane.queries.row_pages import read_row_page
from control_plane.text_forms import text_form
from control_plane.usecases.agent_users import delete_agent_user, put_agent_user
from control_plane.usecases.idempotency import ExtraWrites

router = guarded_router("agent-users")

OwnerName = Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[int, Field(ge=0, le=2**32 - 2)]
MachineName = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^[^\s:,/\x00-\x1f]{0,64}$", "at most 64 characters without spaces and the signs :,/"
        )
    ),
]


class AgentUserBody(RequestBody):
    """The body of `PUT /agent-users`: a user of the machines for a user or a workspace."""

    kind: AgentUserKind = Field(strict=False)
    name: OwnerName
    uid: Number | None = None
    gid: Number | None = None
    user: MachineName = ""
    group: MachineName = ""


class AgentUser(Answer):
    """The agent user of a user or a workspace."""

    kind: AgentUserKind
    name: str
    uid: int | None
    gid: int | None
    user: str
    group: str
    changed_by: str
    changed_ms: int


@router.get("/agent-users")
@require_role(*USER_ROLES)
def list_agent_users(services: ServicesParameter, page: PageParameters) -> Page[AgentUser]:
    """List the agent users of users and workspaces, by kind and name.

    Error: `invalid` for a cursor of another list.
    """
    rows, cursor = read_row_page(services.table, PARTITION, page)
    items = [AgentUser(**asdict(CODEC.decode(row.body))) for row in rows]
    return Page(items=items, next_cursor=cursor)


@router.put("/agent-users", response_model=AgentUser)
@require_role(Role.ADMIN)
def put(
    body: AgentUserBody, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Set the agent user of a user or a workspace, and return the agent user.

    Trials use the agent user from their next start. Errors: `forbidden` unless the caller is an
    admin. `invalid` for a user without `uid` and `gid`, for a workspace without either, and for the
    id 0 unless the cluster configuration allows root. `unavailable` if other requests keep changing
    the agent user.
    """
    record = AgentUserRecord(
        body.kind,
        body.name,
        body.uid,
        body.gid,
        body.user,
        body.group,
        caller.user,
        services.now_ms(),
    )

    def effect(extra_writes: ExtraWrites) -> object:
        stored = put_agent_user(services.table, record, lambda kept: extra_writes(asdict(kept)))
        return asdict(stored)

    return answer_response(request.execute(services, effect, _answer_from_reply))


@router.delete("/agent-users", response_model=AgentUser)
@require_role(Role.ADMIN)
def delete(
    kind: Annotated[AgentUserKind, Query()],
    name: Annotated[OwnerName, Query()],
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Remove the agent user of a user or a workspace, and return the removed agent user.

    Errors: `forbidden` unless the caller is an admin. `not_found` without an agent user.
    `unavailable` if other requests keep changing the agent user.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        gone = delete_agent_user(
            services.table, kind, name, lambda record: extra_writes(asdict(record))
        )
        return asdict(gone)

    return answer_response(request.execute(services, effect, _answer_from_reply))


def _answer_from_reply(reply: dict[str, Any]) -> AgentUser:
    return AgentUser(**{**reply, "kind": AgentUserKind(reply["kind"])})
