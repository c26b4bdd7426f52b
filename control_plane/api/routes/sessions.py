"""Routes of browser sessions: create a sign-in code, open a session, end a session."""

from typing import Annotated

from fastapi import Request, Response
from pydantic import Field, model_validator

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.authentication import request_token
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.page_origins import is_cross_origin, page_origin
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import Caller, allow_anyone, guarded_router, require_role
from control_plane.api.session_cookie import set_cookie
from control_plane.api.sign_in_limits import SignInLimits
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.usecases.browser_sessions import (
    CROSS_ORIGIN_SESSION_MS,
    SESSION_MS,
    create_sign_in_code,
    create_token_by_code,
    end_session,
    is_session_token,
    open_session_by_code,
    open_session_by_token,
)

router = guarded_router("sessions")

Secret = Annotated[str, Field(min_length=1, max_length=256)]


class SessionBody(RequestBody):
    """The body of `POST /sessions`. Exactly one field must be set."""

    code: Secret | None = None
    token: Secret | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "SessionBody":
        if (self.code is None) is (self.token is None):
            raise ValueError("send either a code or a token")
        return self


class NewCode(Answer):
    """A code for a single sign-in.

    `path` is the path of the web page that signs in with the code. `expires_ms` is in epoch ms.
    """

    code: str
    path: str
    expires_ms: int


class OpenedSession(Answer):
    """A new session of `user`.

    `key` is the half of the session's token that the page sends as `X-Session-Key`. For a page of
    another origin, `key` is the whole token. `expires_ms` is in epoch ms.
    """

    key: str
    user: str
    role: Role
    expires_ms: int


@router.post("/sign-in-codes", status_code=201)
@require_role(*USER_ROLES, changes=only_own)
def create_code(caller: Caller, services: ServicesParameter, request: Request) -> NewCode:
    """Create a code that signs a browser in as the caller, a single time.

    The code is valid for 5 minutes, and only while the caller's token is valid. The session ends at
    the latest when the token expires or is revoked.
    Error: `conflict` if the caller's token was created through too many other tokens.
    """
    made = create_sign_in_code(services, caller, request_token(request, services.cluster_id))
    path = f"/ui/#/sign-in/{made.code}"
    return NewCode(code=made.code, path=path, expires_ms=made.expires_ms)


class CodeBody(RequestBody):
    """The body of `POST /sign-in-codes/token`. `description` describes the new token in lists."""

    code: Secret
    description: Annotated[str, Field(max_length=200)] = ""


class CodeToken(Answer):
    """A new token of `user`, with the secret, which no later answer contains.

    `expires_ms` is in epoch ms, or null for a token that does not expire.
    """

    id: int
    token: str
    user: str
    role: Role
    expires_ms: int | None


@router.post("/sign-in-codes/token", status_code=201)
@allow_anyone
def exchange_code(body: CodeBody, services: ServicesParameter, request: Request) -> CodeToken:
    """Create a token for the user of a sign-in code. The code is used up.

    The command line signs in with this route. The token has the user's role, and ends with the
    token that created the code. Errors: `unauthenticated` if the code is unknown, used or expired.
    `forbidden` for a page of another origin. `rate_limited` after too many refused sign-ins.
    `unavailable` if too many tokens are created at the same time.
    """
    if is_cross_origin(request):
        raise RequestError(Code.FORBIDDEN, "a page elsewhere opens a session with the code")
    limits: SignInLimits = request.app.state.sign_in_limits
    with limits.count_attempt(request.client.host if request.client else ""):
        token, record = create_token_by_code(services, body.code, body.description)
    return CodeToken(
        id=record.id,
        token=token,
        user=record.user,
        role=record.role,
        expires_ms=record.expires_ms,
    )


@router.post("/sessions", status_code=201)
@allow_anyone
def open_session(
    body: SessionBody, services: ServicesParameter, request: Request, response: Response
) -> OpenedSession:
    """Open a session with a sign-in code or with a user's token. The code is used up.

    The API's own page gets half of the session's token in the answer and the other half as a
    cookie, for 7 days. A page of an allowed other origin gets the whole token, for 12 hours, and no
    cookie. A session never outlives the token. Errors: `unauthenticated` if the code or the token
    is unknown, used, expired or revoked. `forbidden` for a page of an origin that is not allowed,
    or for a token that is not a user's. `rate_limited` after too many refused sign-ins. `conflict`
    if the token was created through too many other tokens.
    """
    is_elsewhere = page_origin(request) is not None
    if is_cross_origin(request) and not is_elsewhere:
        text = (
            "page_origins in the cluster configuration names the pages elsewhere that may sign in"
        )
        raise RequestError(Code.FORBIDDEN, f"this page may not: {text}")
    last_ms = CROSS_ORIGIN_SESSION_MS if is_elsewhere else SESSION_MS
    limits: SignInLimits = request.app.state.sign_in_limits
    with limits.count_attempt(request.client.host if request.client else ""):
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
@require_role(*USER_ROLES, changes=only_own)
def end(services: ServicesParameter, request: Request) -> Response:
    """End the session of the request, and delete the session cookie in the browser.

    Error: `not_found` if the request has a token that is not a session's. Revoke such a token
    instead.
    """
    token = request_token(request, services.cluster_id)
    if not is_session_token(token):
        text = "this request belongs to no session; DELETE /tokens/{id} revokes a token"
        raise RequestError(Code.NOT_FOUND, text)
    end_session(services.table, token)
    response = Response(status_code=204)
    set_cookie(response, request, services.cluster_id, "", 0)
    return response
