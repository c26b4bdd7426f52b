"""The outermost layer: each request gets an id, a host check, headers, a log line, an answer."""

import logging
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.errors import error_response
from control_plane.api.page_origins import add_origin_headers
from control_plane.api.request_limits import has_ambiguous_length, is_host_allowed
from control_plane.errors import Code, RequestError

log = logging.getLogger("control_plane.api")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RequestBoundary:
    """ASGI middleware around everything, the handlers of errors included.

    An unexpected exception is logged with the request's id and answered as `internal`;
    the client sees the id and nothing else of it. A header that a handler set stays as it is.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            answer = self._refusal(scope) or self._app
            await answer(scope, receive, exchange.send)
        except Exception:
            log.exception("request failed", extra={"fields": exchange.fields()})
            if exchange.status:
                raise  # Half an answer is out: only a broken connection tells the client.
            text = f"internal error; the server's log has the details under {exchange.request_id}"
            answer = error_response(RequestError(Code.INTERNAL, text))
            await answer(scope, receive, exchange.send)
        log.info("request", extra={"fields": exchange.fields()})

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer to a request that is refused whatever it asks for, None for any other."""
        if not is_host_allowed(scope, self._hosts):
            text = "the Host header does not name a host of this cluster"
            return error_response(RequestError(Code.FORBIDDEN, text))
        if has_ambiguous_length(scope):
            error = RequestError(Code.INVALID, "send Content-Length or Transfer-Encoding, not both")
            return error_response(error, {"Connection": "close"})
        return None


class _Exchange:
    """One request and what has been answered so far; `status` is 0 before that."""

    def __init__(self, scope: Scope, send: Send) -> None:
        scope.setdefault("state", {})
        self.request_id = secrets.token_hex(8)
        self.status = 0
        self._scope = scope
        self._send = send
        self._began_seconds = time.perf_counter()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.request_id
            add_origin_headers(self._scope, headers)
        await self._send(message)

    def fields(self) -> dict[str, Any]:
        """The fields of the log line. The query is left out: it may hold a signature."""
        principal = self._scope["state"].get("principal")
        return {
            "request_id": self.request_id,
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "duration_ms": round((time.perf_counter() - self._began_seconds) * 1000, 1),
            "user": principal.user if principal else None,
            "role": principal.role.value if principal else None,
        }
