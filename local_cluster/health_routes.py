"""The routes `/healthz` and `/readyz`, for load balancers, containers and monitoring."""

import time
from collections.abc import Callable

from anyio import to_thread
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.state.table import TableError

LIVE_PATH = "/healthz"
READY_PATH = "/readyz"
# Strangers may call the routes, so that the state is read at most this often.
CHECK_SECONDS_MIN = 2.0


class HealthRoutes:
    """ASGI middleware that answers `/healthz` and `/readyz` without a token, for every Host.

    `/healthz` answers 200 while the process serves requests. `/readyz` answers 200 while the state
    can be read, and 503 otherwise. From `stop` on, `/readyz` answers 503, so that load balancers
    send new requests elsewhere. The answers contain nothing else.

    Args:
        app: the application that answers all other requests.
        read_state: reads a row of the state. Raises TableError if the state cannot be read.
    """

    def __init__(self, app: ASGIApp, read_state: Callable[[], object]) -> None:
        self._app = app
        self._read_state = read_state
        self._is_stopping = False
        self._is_readable = False
        self._checked_seconds = -CHECK_SECONDS_MIN

    def stop(self) -> None:
        """Answer 503 for `/readyz` from now on."""
        self._is_stopping = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a route of this class, and pass on all other requests."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path not in (LIVE_PATH, READY_PATH) or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        is_well = path == LIVE_PATH or await self._is_ready()
        answer = PlainTextResponse(
            "ok\n" if is_well else "not ready\n",
            200 if is_well else 503,
            {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
        )
        await answer(scope, receive, send)

    async def _is_ready(self) -> bool:
        """Return whether the state can be read. A result is used again for CHECK_SECONDS_MIN."""
        if self._is_stopping:
            return False
        now = time.monotonic()
        if now - self._checked_seconds >= CHECK_SECONDS_MIN:
            self._checked_seconds = now
            try:
                await to_thread.run_sync(self._read_state)
                self._is_readable = True
            except TableError:
                self._is_readable = False
        return self._is_readable and not self._is_stopping
