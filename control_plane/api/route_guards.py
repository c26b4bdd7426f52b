"""Routes that cannot be declared without saying who may call them.

Above each handler, below its route, stands one of `require_role(roles)`, `require_signature` and
`allow_anyone`. The check runs before a byte of the body is read, and the body is bounded by the
same declaration.
"""

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from control_plane.access.principals import Principal, Role
from control_plane.api.authentication import authenticate, request_token
from control_plane.api.errors import ErrorAnswer
from control_plane.api.request_bounds import RequestBounds
from control_plane.api.request_limits import BODY_BYTES_MAX, limit_body
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import Grant, InvalidSignature
from control_plane.objects.store import InvalidKey, Method, ObjectKey
from control_plane.services import Services

API_PATH = "/api/v1"

_KEY_PARAMETER = {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class AccessRule:
    """The requirement of a route: one of `roles`, a signature, or nothing.

    A signed route's body is bounded by the signature instead of by `body_bytes_max`.
    """

    roles: frozenset[Role] = frozenset()
    is_signed: bool = False
    body_bytes_max: int = BODY_BYTES_MAX


def require_role(
    *roles: Role, body_bytes_max: int = BODY_BYTES_MAX
) -> Callable[[Handler], Handler]:
    """Allow callers with one of `roles`; the handler may have a `Caller` parameter."""
    if not roles:
        raise TypeError("name at least one role, or say allow_anyone")
    return lambda handler: _declare(handler, AccessRule(frozenset(roles), False, body_bytes_max))


def require_signature(handler: Handler) -> Handler:
    """Allow requests with a signature of the path's `{key}`; the handler may have a
    `GrantParameter`.
    """
    return _declare(handler, AccessRule(is_signed=True))


def allow_anyone(handler: Handler) -> Handler:
    """Allow all requests, without a token."""
    return _declare(handler, AccessRule())


class GuardedRoute(APIRoute):
    """A route that enforces its handler's declaration, and refuses a handler without one.

    Until its first request, or until the API is described, only its path and methods exist: the
    checks of its parameters and of its answer take as long to make as a hundred requests.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        rule = getattr(endpoint, "access_rule", None)
        if not isinstance(rule, AccessRule):
            text = "put require_role(...), require_signature or allow_anyone above its handler"
            raise TypeError(f"{path}: {text}")
        self.access_rule = rule
        if rule.roles:
            options["openapi_extra"] = {"security": [{"bearer": []}]}
        elif rule.is_signed:
            options["openapi_extra"] = {"parameters": [_KEY_PARAMETER]}
        Route.__init__(self, path, endpoint)
        self.methods = set(options["methods"])
        self._build: Callable[[], None] | None = partial(
            super().__init__, path, endpoint, **options
        )

    def complete(self) -> None:
        """Build the rest of the route, unless it was built before."""
        if build := self._build:
            build()
            self._build = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that matches."""
        self.complete()
        # A request counts as its caller's until the last byte of its answer was sent.
        with ExitStack() as counted:
            scope.setdefault("state", {})["counted"] = counted
            await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        rule = self.access_rule

        async def check_and_handle(request: Request) -> Response:
            bytes_max = rule.body_bytes_max
            bounds: RequestBounds = request.app.state.request_bounds
            counted: ExitStack = request.state.counted
            if rule.roles:
                principal = request.state.principal = await _authorize(request, rule.roles)
                counted.enter_context(bounds.count_principal(principal))
            elif rule.is_signed:
                grant = request.state.grant = _verify_grant(request)
                counted.enter_context(bounds.count_signed(grant.key))
                bytes_max = grant.size or 0
            return await handle(limit_body(request, bytes_max))

        return check_and_handle


def guarded_router(tag: str) -> APIRouter:
    """A router for one noun, below the API's path, of guarded routes only."""
    responses: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorAnswer, "description": "The request is refused."},
        "5XX": {"model": ErrorAnswer, "description": "The cluster cannot answer."},
    }
    return APIRouter(prefix=API_PATH, tags=[tag], route_class=GuardedRoute, responses=responses)


def _principal(request: Request) -> Principal:
    return cast(Principal, request.state.principal)


def _grant(request: Request) -> Grant:
    return cast(Grant, request.state.grant)


Caller = Annotated[Principal, Depends(_principal)]
"""The type of a handler's parameter that receives the principal who calls."""

GrantParameter = Annotated[Grant, Depends(_grant)]
"""The type of a handler's parameter that receives what the signature allows."""


def _declare(handler: Handler, rule: AccessRule) -> Handler:
    handler.__dict__["access_rule"] = rule
    return handler


async def _authorize(request: Request, roles: frozenset[Role]) -> Principal:
    services: Services = request.app.state.services
    token = request_token(request, services.cluster_id)
    principal = await run_in_threadpool(authenticate, services.tokens, token)
    if principal.role not in roles:
        allowed = " or ".join(sorted(roles))
        raise RequestError(Code.FORBIDDEN, f"this needs the role {allowed}, not {principal.role}")
    return principal


def _verify_grant(request: Request) -> Grant:
    services: Services = request.app.state.services
    query = request.query_params
    try:
        key = ObjectKey(request.path_params["key"])
    except InvalidKey as error:
        raise invalid("key", error.reason) from None
    size, expires_ms = _parse_number(query.get("size")), _parse_number(query.get("expires_ms"))
    method = cast(Method, request.method)
    grant = Grant(method, key, size, query.get("sha256"), expires_ms or 0)
    try:
        services.signer.verify(grant, query.get("signature", ""), services.now_ms())
    except InvalidSignature as error:
        raise RequestError(Code.FORBIDDEN, str(error)) from None
    return grant


def _parse_number(text: str | None) -> int | None:
    """Parse a query parameter; None for one that is no plain number, which fits no signature."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 16 else None
