"""Guarded routes, which cannot be declared without a rule for access.

Each handler has a decorator below the route: `require_role(roles)`, `require_signature` or
`allow_anyone`. The check of the caller runs before the body is read. The same declaration limits
the body. A route by which users change objects also declares the changed objects, and
access/ownership.py decides which users may change them.
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

from control_plane.access.ownership import Action, FindOwned, check_may_change
from control_plane.access.principals import Principal, Role
from control_plane.api.authentication import authenticate, request_token
from control_plane.api.errors import ErrorAnswer
from control_plane.api.request_bounds import RequestBounds
from control_plane.api.request_limits import BODY_BYTES_MAX, check_target, limit_body
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import Grant, InvalidSignature
from control_plane.objects.store import InvalidKey, Method, ObjectKey
from control_plane.services import Services
from control_plane.usecases.idempotency import (
    has_taken_effect,
    idempotency_row_key,
    request_digest,
)

API_PATH = "/api/v1"

_KEY_PARAMETER = {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}

Handler = TypeVar("Handler", bound=Callable[..., Any])

Changes = Callable[..., FindOwned]
"""A dependency of FastAPI that returns a function, which finds the objects that a request changes.

api/owned_objects.py has the dependencies that several nouns use.
"""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class AccessRule:
    """The rule of a route for access. Without roles and signature, the route allows everyone."""

    roles: frozenset[Role] = frozenset()
    """The roles that may call the route. Empty for a route that needs no token."""
    is_signed: bool = False
    """Whether a request needs a signature, which then limits the body's size."""
    body_bytes_max: int = BODY_BYTES_MAX
    """The most bytes of the body, for a route without signatures."""
    has_lines: bool = False
    """Whether the body has report lines of trials. The gate then checks each line separately, so
    that a faulty line does not refuse the others.
    """
    changes: Changes | None = None
    """The dependency that finds the objects which a request changes. The caller must be allowed to
    change them. None for a route by which users only read, or that no user may call.
    """
    action: Action | None = None
    """The action on the changed objects. None stands for a deletion if the method is DELETE, and
    for a change otherwise.
    """


def require_role(
    *roles: Role,
    body_bytes_max: int = BODY_BYTES_MAX,
    has_lines: bool = False,
    changes: Changes | None = None,
    action: Action | None = None,
) -> Callable[[Handler], Handler]:
    """Return a decorator that declares a handler for callers with one of `roles`.

    The decorator stores the rule in the handler and returns the handler, which may have a `Caller`
    parameter. The other arguments are those of `AccessRule`. The route refuses a caller who may
    not do `action` to each object that `changes` finds, before the handler runs.

    Raises:
        TypeError: no role is given.
    """
    if not roles:
        raise TypeError("name at least one role, or say allow_anyone")
    rule = AccessRule(frozenset(roles), False, body_bytes_max, has_lines, changes, action)
    return lambda handler: _declare(handler, rule)


def require_signature(handler: Handler) -> Handler:
    """Declare a handler for requests with a valid signature for the path's `{key}`.

    Store the rule in the handler, and return the handler, which may have a `GrantParameter`.
    """
    return _declare(handler, AccessRule(is_signed=True))


def allow_anyone(handler: Handler) -> Handler:
    """Declare a handler for all requests, with or without a token.

    Store the rule in the handler, and return the handler.
    """
    return _declare(handler, AccessRule())


class GuardedRoute(APIRoute):
    """A route that enforces the handler's rule for access.

    The constructor raises TypeError for a handler without a rule, and for a handler by which users
    change something without `changes`. Until the first request or the API's description, only path
    and methods exist. Building the checks of parameters and answer takes as long as a hundred
    requests.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        rule = getattr(endpoint, "access_rule", None)
        if not isinstance(rule, AccessRule):
            text = "put require_role(...), require_signature or allow_anyone above its handler"
            raise TypeError(f"{path}: {text}")
        self.access_rule = rule
        methods = set(options["methods"])
        if rule.changes is not None:
            action = rule.action or (Action.DELETE if "DELETE" in methods else Action.CHANGE)
            check = Depends(_owner_check(rule.changes, action))
            options["dependencies"] = [check, *(options.get("dependencies") or ())]
        elif Role.USER in rule.roles and methods - _READING:
            text = "say what it `changes` in require_role(...): api/owned_objects.py lists choices"
            raise TypeError(f"{path}: {text}")
        if rule.roles:
            options["openapi_extra"] = {"security": [{"bearer": []}]}
        elif rule.is_signed:
            options["openapi_extra"] = {"parameters": [_KEY_PARAMETER]}
        Route.__init__(self, path, endpoint)
        self.methods = methods
        self._build: Callable[[], None] | None = partial(
            super().__init__, path, endpoint, **options
        )

    def complete(self) -> None:
        """Build the checks of parameters and answer. Do nothing if the route is already complete.

        The rule for access was checked by the constructor.
        """
        if build := self._build:
            build()
            self._build = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that matches the route. The first request builds the rest of the route.

        The request counts against the limits of concurrent requests until the whole answer is sent.
        """
        self.complete()
        with ExitStack() as counted:
            scope.setdefault("state", {})["counted"] = counted
            await super().handle(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a function that checks the caller and the path, limits the body, and answers.

        The function stores `principal` or `grant` in the request's state, and counts the request as
        the caller's. It raises RequestError unauthenticated, forbidden, rate_limited or invalid for
        a refused request, and BodyError for a refused body.
        """
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
            # Check the target last, so that callers without a token learn nothing from the answer.
            check_target(request.scope)
            seconds_max = bounds.body_seconds_max
            return await handle(
                limit_body(request, bytes_max, has_lines=rule.has_lines, seconds_max=seconds_max)
            )

        return check_and_handle


def guarded_router(tag: str) -> APIRouter:
    """Return a router for a noun's guarded routes below API_PATH.

    `tag` groups the routes in the OpenAPI document, which also shows error answers for each route.
    """
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
"""The type of a handler's parameter that receives the caller's principal."""

GrantParameter = Annotated[Grant, Depends(_grant)]
"""The type of a handler's parameter that receives the request which the signature permits."""


def _owner_check(changes: Changes, action: Action) -> Callable[..., None]:
    """Return a dependency that refuses a caller who may not do `action` to the changed objects.

    The dependency raises RequestError forbidden for the first such object, and passes on errors of
    `changes`. Admins pass without a search for the objects. A repeated deletion passes if the
    deletion has taken effect, so that the handler returns the stored answer.
    """

    def check_owners(
        request: Request, caller: Caller, find: Annotated[FindOwned, Depends(changes)]
    ) -> None:
        # An admin may change everything, so that the search would be wasted.
        if caller.role is Role.ADMIN:
            return
        try:
            for owned in find():
                check_may_change(caller, owned, action)
        except RequestError as error:
            if error.code is not Code.NOT_FOUND or not _is_repeated_deletion(request, caller):
                raise

    return check_owners


def _is_repeated_deletion(request: Request, caller: Principal) -> bool:
    """Return whether a deletion with the request's idempotency key has taken effect."""
    name = request.headers.get("idempotency-key")
    if request.method != "DELETE" or not name:
        return False
    services: Services = request.app.state.services
    key = idempotency_row_key(caller.user, name)
    return has_taken_effect(services.table, key, request_digest(request.method, request.url.path))


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
    """Parse a number in a query parameter.

    Return None for a missing parameter, and for text other than 1 to 16 ASCII digits.
    """
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 16 else None
