"""Routes of browsers' sessions: make a code that opens one, open one, end it."""

from typing import Annotated

from fastapi import Request, Response
from pydantic import Field, model_validator

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.authentication import request_token
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.page_origins import is_cross_origin, page_origin
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import Caller, allow_anyone, guarded_router, require_role
from control_plane.api.session_cookie import set_cookie
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.usecases.browser_sessions import (
    CROSS_ORIGIN_SESSION_MS,
    SESSION_MS,
    create_sign_in_code,
    end_session,
    is_session_token,
    open_session_by_code,
    open_session_by_token,
)

router = guarded_router("sessions")

Secret = Annotated[str, Field(min_length=1, max_length=256)]


class SessionBody(RequestBody):
    """The body of `POST /sessions`: one of the two."""

    code: Secret | None = None
    token: Secret | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "SessionBody":
        if (self.code is None) is (self.token is None):
            raise ValueError("send either a code or a token")
        return self


class NewCode(Answer):
    """A code for one sign-in, and the path of the page that takes it."""

    code: str
    path: str
    expires_ms: int


class OpenedSession(Answer):
    """A session that was opened: the half that the page keeps, or for a page elsewhere the whole
    token, and whose it is.
    """

    key: str
    user: str
    role: Role
    expires_ms: int


@router.post("/sign-in-codes", status_code=201)
@require_role(*USER_ROLES)
def create_code(caller: Caller, services: ServicesParameter, request: Request) -> NewCode:
    """Make a code that signs a browser in once, in the caller's name."""
    made = create_sign_in_code(services, caller, request_token(request, services.cluster_id))
    path = f"/ui/#/sign-in/{made.code}"
    return NewCode(code=made.code, path=path, expires_ms=made.expires_ms)


@router.post("/sessions", status_code=201)
@allow_anyone
def open_session(
    body: SessionBody, services: ServicesParameter, request: Request, response: Response
) -> OpenedSession:
    """Open a session. The other half of it is set as a cookie, but for a page elsewhere, which gets
    a token for half a day.
    """
    is_elsewhere = page_origin(request) is not None
    if is_cross_origin(request) and not is_elsewhere:
        text = (
            "page_origins in the cluster configuration names the pages elsewhere that may sign in"
        )
        raise RequestError(Code.FORBIDDEN, f"this page may not: {text}")
    last_ms = CROSS_ORIGIN_SESSION_MS if is_elsewhere else SESSION_MS
    if body.code is not None:
        session = open_session_by_code(services, body.code, last_ms)
    else:
        session = open_session_by_token(services, body.token or "", last_ms)
    if not is_elsewhere:
        seconds = (session.expires_ms - services.now_ms()) // 1000
        set_cookie(response, request, services.cluster_id, session.cookie, seconds)
    principal = session.principal
    return OpenedSession(
        key=session.token if is_elsewhere else session.key,
        user=principal.user,
        role=principal.role,
        expires_ms=session.expires_ms,
    )


@router.delete("/sessions/current", status_code=204)
@require_role(*USER_ROLES)
def end(services: ServicesParameter, request: Request) -> Response:
    """End the session that the request is of; a token is revoked instead."""
    token = request_token(request, services.cluster_id)
    if not is_session_token(token):
        text = "this request belongs to no session; DELETE /tokens/{id} revokes a token"
        raise RequestError(Code.NOT_FOUND, text)
    end_session(services.table, token)
    response = Response(status_code=204)
    set_cookie(response, request, services.cluster_id, "", 0)
    return response
