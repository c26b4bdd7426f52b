"""The outermost layer of the API: ids, Host checks, security headers, log lines, last errors."""

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
    """ASGI middleware around the whole application, handlers of errors included.

    Each HTTP request gets an id and a line in the log. Each answer gets the id in `X-Request-Id`,
    security headers that the handler did not set, and headers for pages of allowed origins. A
    request for a host that is not in `hosts`, or with an ambiguous length, is refused here. An
    unexpected exception is logged and answered as `internal`, which shows only the id. If the
    answer has begun, the exception is raised again. ASGI events other than HTTP pass unchanged.
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
                raise  # The answer has begun: only a broken connection shows the error.
            text = f"internal error; the server's log has the details under {exchange.request_id}"
            answer = error_response(RequestError(Code.INTERNAL, text))
            await answer(scope, receive, exchange.send)
        log.info("request", extra={"fields": exchange.fields()})

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """Return the answer to a request that is refused without reading the path.

        Return `forbidden` if the Host header names no host of the cluster. Return `invalid` for
        both Content-Length and Transfer-Encoding. Return None for other requests.
        """
        if not is_host_allowed(scope, self._hosts):
            text = "the Host header does not name a host of this cluster"
            return error_response(RequestError(Code.FORBIDDEN, text))
        if has_ambiguous_length(scope):
            error = RequestError(Code.INVALID, "send Content-Length or Transfer-Encoding, not both")
            return error_response(error, {"Connection": "close"})
        return None


class _Exchange:
    """A request with a random id, and the progress of the answer.

    `status` is the HTTP status of the answer, or 0 while the answer has not begun. Creating an
    exchange adds the key `state` to `scope`, if absent.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        scope.setdefault("state", {})
        self.request_id = secrets.token_hex(8)
        self.status = 0
        self._scope = scope
        self._send = send
        self._began_seconds = time.perf_counter()

    async def send(self, message: Message) -> None:
        """Send a message of the answer. Note the status at the start, and add headers to `message`.

        The headers are the request's id, missing security headers, and headers for the page of an
        allowed origin.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-Id"] = self.request_id
            add_origin_headers(self._scope, headers)
        await self._send(message)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the request's log line.

        The query is left out, because a query may contain a signature. `user` and `role` are None
        for a request without a caller. `duration_ms` runs from the creation of the exchange.
        """
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
