"""The outermost layer: each request gets an id, a host check, headers, a log line, an answer."""

import logging
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.errors import ApiError, Code
from control_plane.api.limits import host_is_ours, is_ambiguous

log = logging.getLogger("control_plane.api")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Boundary:
    """ASGI middleware around everything, the handlers of errors included.

    An exception that nobody expected is logged with the request's id and answered as `internal`;
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
            refusal = self._refusal(scope)
            answer = self._app if refusal is None else refusal.response()
            await answer(scope, receive, exchange.send)
        except Exception:
            log.exception("request failed", extra={"fields": exchange.fields()})
            if exchange.status:
                raise  # Half an answer is out: only a broken connection tells the client.
            text = f"something broke here; the log has it under {exchange.request_id}"
            await ApiError(Code.INTERNAL, text).response()(scope, receive, exchange.send)
        log.info("request", extra={"fields": exchange.fields()})

    def _refusal(self, scope: Scope) -> ApiError | None:
        """What is wrong with a request, whatever it asks for."""
        if not host_is_ours(scope, self._hosts):
            return ApiError(Code.FORBIDDEN, "the Host header names none of our hosts")
        if is_ambiguous(scope):
            text = "send Content-Length or Transfer-Encoding, not both"
            return ApiError(Code.INVALID, text, headers={"Connection": "close"})
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
        await self._send(message)

    def fields(self) -> dict[str, Any]:
        """What the log says of it. The query is left out: it may hold a signature."""
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
