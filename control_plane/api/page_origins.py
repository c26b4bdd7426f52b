"""Requests from pages of other origins: the allowed origins, and the headers for browsers.

A page of another origin sends a token. No header here makes a browser add cookies. A page of
another origin therefore cannot use a session of the page that the API serves.
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
# X-Session-Key is not allowed: sessions belong to the page that the API serves.
_REQUEST_HEADERS = "Authorization, Content-Type, Idempotency-Key"
_ANSWER_HEADERS = "Retry-After, X-Request-Id"
# For this time a browser does not ask again for a route, even if the origin was removed.
_PREFLIGHT_SECONDS = 300
# Sec-Fetch-Site in requests of the API's own page, and in requests that a person typed.
_OWN_SITES = frozenset({"same-origin", "none"})


class PageOrigins:
    """ASGI middleware for requests that browsers send for pages of other origins.

    Store an allowed origin in the state of the request, for `page_origin`. Answer a preflight
    request: 204 for an allowed origin, otherwise `forbidden`. Pass on all other requests, also from
    origins that are not allowed. Answer `unavailable` if the allowed origins cannot be read.

    Args:
        read_allowed: returns the allowed origins. May block, and may raise Unavailable.
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
    """Return the allowed other origin that PageOrigins found in the request, if any.

    The result is None for the API's own page, for origins that are not allowed, and for requests
    without an origin.
    """
    return cast("str | None", getattr(request.state, "page_origin", None))


def is_cross_origin(request: Request) -> bool:
    """Return whether a browser sends the request for a page of another origin, allowed or not.

    Return False for the API's own page, requests that a person typed, and other clients. Without
    the header Sec-Fetch-Site, only pages of allowed origins are recognized.
    """
    site = request.headers.get("sec-fetch-site")
    return page_origin(request) is not None or (site is not None and site not in _OWN_SITES)


def add_origin_headers(scope: Scope, headers: MutableHeaders) -> None:
    """Add headers to `headers` that let a page of an allowed other origin read the answer.

    Add nothing if the request in `scope` has no allowed origin.
    """
    if origin := scope.get("state", {}).get("page_origin"):
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = _ANSWER_HEADERS
        headers.add_vary_header("Origin")


def _is_own(origin: str, headers: Headers) -> bool:
    """Return whether an origin is the host of the Host header, with HTTP or HTTPS."""
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
