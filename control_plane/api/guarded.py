"""Routes that cannot be declared without saying who may call them.

Above each handler, below its route, stands one of `needs(roles)`, `signed` and `open_to_all`. The
check runs before a byte of the body is read, and the body is bounded by the same declaration.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from control_plane.api.auth import Principal, Role, authenticate
from control_plane.api.errors import ApiError, Code, ErrorAnswer, invalid
from control_plane.api.limits import BODY_BYTES_MAX, bounded
from control_plane.api.services import Services
from control_plane.api.signing import Grant
from control_plane.objects.store import Key, KeyInvalid, Method

API_PATH = "/api/v1"
PEOPLE = (Role.USER, Role.ADMIN)

_KEY_PARAMETER = {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class Access:
    """What a route asks for: one of `roles`, a signature, or nothing.

    A signed route's body is bounded by the signature instead of by `body_bytes_max`.
    """

    roles: frozenset[Role] = frozenset()
    is_signed: bool = False
    body_bytes_max: int = BODY_BYTES_MAX


def needs(*roles: Role, body_bytes_max: int = BODY_BYTES_MAX) -> Callable[[Handler], Handler]:
    """Lets callers with one of `roles` reach the handler, which may ask for a `Caller`."""
    if not roles:
        raise TypeError("name at least one role, or say open_to_all")
    return lambda handler: _declare(handler, Access(frozenset(roles), False, body_bytes_max))


def signed(handler: Handler) -> Handler:
    """Lets requests with a signature on the path's `{key}` through, described by a `Granted`."""
    return _declare(handler, Access(is_signed=True))


def open_to_all(handler: Handler) -> Handler:
    """Lets everybody reach the handler."""
    return _declare(handler, Access())


class GuardedRoute(APIRoute):
    """A route that enforces its handler's declaration, and refuses a handler without one.

    Until it is asked for the first time, or described, it is what finds it and no more: the checks
    of its parameters and its answer take as long to make as a hundred requests.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        access = getattr(endpoint, "access", None)
        if not isinstance(access, Access):
            raise TypeError(f"{path}: put needs(...), signed or open_to_all above its handler")
        self.access = access
        if access.roles:
            options["openapi_extra"] = {"security": [{"bearer": []}]}
        elif access.is_signed:
            options["openapi_extra"] = {"parameters": [_KEY_PARAMETER]}
        Route.__init__(self, path, endpoint)
        self.methods = set(options["methods"])
        self._whole: Callable[[], None] | None = partial(
            super().__init__, path, endpoint, **options
        )

    def complete(self) -> None:
        """Makes all of the route, if that is not done."""
        if make := self._whole:
            make()
            self._whole = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that matches."""
        self.complete()
        await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        access = self.access

        async def guarded(request: Request) -> Response:
            bytes_max = access.body_bytes_max
            if access.roles:
                request.state.principal = await _authorized(request, access.roles)
            elif access.is_signed:
                grant = request.state.grant = _granted(request)
                bytes_max = grant.size or 0
            return await handle(bounded(request, bytes_max))

        return guarded


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
"""The type of a handler's parameter that receives who calls."""

Granted = Annotated[Grant, Depends(_grant)]
"""The type of a handler's parameter that receives what the signature allows."""


def _declare(handler: Handler, access: Access) -> Handler:
    handler.__dict__["access"] = access
    return handler


async def _authorized(request: Request, roles: frozenset[Role]) -> Principal:
    services: Services = request.app.state.services
    headers = request.headers.getlist("authorization")
    # Of two, a proxy before us may have looked at the other one.
    header = headers[0] if len(headers) == 1 else None
    principal = await run_in_threadpool(authenticate, services.tokens, header)
    if principal.role not in roles:
        wanted = " or ".join(sorted(roles))
        raise ApiError(Code.FORBIDDEN, f"this needs the role {wanted}, not {principal.role}")
    return principal


def _granted(request: Request) -> Grant:
    services: Services = request.app.state.services
    query = request.query_params
    try:
        key = Key(request.path_params["key"])
    except KeyInvalid as error:
        raise invalid("key", error.reason) from None
    size, expires_ms = _number(query.get("size")), _number(query.get("expires_ms"))
    method = cast(Method, request.method)
    grant = Grant(method, key, size, query.get("sha256"), expires_ms or 0)
    services.signer.check(grant, query.get("signature", ""), services.now_ms())
    return grant


def _number(text: str | None) -> int | None:
    """The number of a query parameter; one that is no plain number fits no signature."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 16 else None
