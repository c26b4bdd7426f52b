"""Pages of other origins: which of them may ask the API, and the headers that tell browsers so.

Such a page sends its token itself. Nothing here tells a browser to send cookies along, so that
no page elsewhere acts by a session of the page that the API serves.
"""

from collections.abc import Callable
from typing import cast

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.errors import answer_unavailable_table, error_response
from control_plane.errors import Code, RequestError
from control_plane.state.table import Unavailable

_METHODS = "GET, POST, PUT, PATCH, DELETE"
# No X-Session-Key among them: a session is of the page that the API serves.
_REQUEST_HEADERS = "Authorization, Content-Type, Idempotency-Key"
_ANSWER_HEADERS = "Retry-After, X-Request-Id"
# How long a browser asks no more for a route: an origin that is taken out works no longer.
_PREFLIGHT_SECONDS = 300
# What a browser says of requests of the page itself, and of those that a person makes.
_OWN_SITES = frozenset({"same-origin", "none"})


class PageOrigins:
    """ASGI middleware that answers browsers which ask on behalf of a page of another origin, and
    notes for all behind it that an allowed one asks. `read_allowed` returns the allowed origins;
    it may block.
    """

    def __init__(self, app: ASGIApp, read_allowed: Callable[[], frozenset[str]]) -> None:
        self._app = app
        self._read_allowed = read_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or _is_own(origin, headers):
            await self._app(scope, receive, send)
            return
        try:
            allowed = await run_in_threadpool(self._read_allowed)
        except Unavailable as error:
            refusal = await answer_unavailable_table(Request(scope), error)
            await refusal(scope, receive, send)
            return
        if len(headers.getlist("origin")) == 1 and origin in allowed:
            scope.setdefault("state", {})["page_origin"] = origin
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        answer: ASGIApp = _preflight_answer(scope) if is_preflight else self._app
        await answer(scope, receive, send)


def page_origin(request: Request) -> str | None:
    """The origin of the allowed page elsewhere that asks; None for all others."""
    return cast("str | None", getattr(request.state, "page_origin", None))


def is_cross_origin(request: Request) -> bool:
    """Whether a browser sends the request for a page of another origin, allowed or not."""
    site = request.headers.get("sec-fetch-site")
    return page_origin(request) is not None or (site is not None and site not in _OWN_SITES)


def add_origin_headers(scope: Scope, headers: MutableHeaders) -> None:
    """Add the headers that let a page of an allowed origin read the answer."""
    if origin := scope.get("state", {}).get("page_origin"):
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = _ANSWER_HEADERS
        headers.add_vary_header("Origin")


def _is_own(origin: str, headers: Headers) -> bool:
    """Whether the origin is the address that the request itself names."""
    scheme, separator, place = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and place == headers.get("host")


def _preflight_answer(scope: Scope) -> Response:
    if "page_origin" not in scope.get("state", {}):
        text = (
            "no page of this origin may ask this cluster; page_origins in the cluster configuration"
            " names those that may"
        )
        return error_response(RequestError(Code.FORBIDDEN, text), {"Vary": "Origin"})
    headers = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _REQUEST_HEADERS,
        "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
    }
    return Response(status_code=204, headers=headers)
