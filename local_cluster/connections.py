"""HTTP connections of an embedded cluster's server, with limits on idle and slow connections.

- A connection is waiting between two requests and until the headers of a request are complete. New
  and partly received headers must be complete within `head_seconds_max`. If more than `waiting_max`
  connections wait, the longest-waiting connection is closed. Strangers' connections are closed
  first. A stranger is a client whose connection had no request with a valid token or signature yet.
- If the server waits for the body of more than `strangers_max` requests of unknown callers, the
  connection of the oldest request is closed. The API limits the time of each body.
- A client must read its response within `write_seconds_max`, plus the time of the unsent bytes at
  `write_bytes_per_second`. Otherwise the connection is closed.

The limits are fields of `ConnectionBounds`.

A connection whose first request begins a tunnel is passed to the relay of the server.

uvicorn parses HTTP. This module sees uvicorn from both of its public sides: `Connection` passes the
events of asyncio to uvicorn's protocol object and calls nothing else of this object.
`ConnectionLimits` is the ASGI application that uvicorn serves. The client's address joins both.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from detcloud.shared.tunnel.relay_link import PATH
from relay.server import Relay

# The parser limits only the length of incomplete lines. Passing the data in small pieces applies
# this limit to lines that arrive at once.
PIECE_BYTES = 16 * 1024
# The first bytes of a connection to the relay.
_RELAY_HEAD = f"GET {PATH} ".encode()


@dataclass(frozen=True)
class ConnectionBounds:
    """The numbers and times that limit the connections of a server."""

    head_seconds_max: float = 15.0
    """The time in which the headers of a request must be complete."""
    waiting_max: int = 192
    """The most connections that wait for a request."""
    strangers_max: int = 96
    """The most unknown callers with an unfinished body."""
    write_seconds_max: float = 30.0
    """The time in which a client must read its response, without the time of the unsent bytes."""
    write_bytes_per_second: int = 16 * 1024
    """The speed at which a client must read the unsent bytes of its response."""


DEFAULT_BOUNDS = ConnectionBounds()


class ConnectionLimits:
    """An ASGI application that serves `app`, and the limits on the server's connections.

    A connection that exceeds one of the `bounds` is closed. The server's connections must
    be of the class that `connection_class` returns. A request whose client address belongs to no
    open connection is passed to `app` without limits: the client has closed the connection already.
    """

    def __init__(self, app: ASGIApp, bounds: ConnectionBounds = DEFAULT_BOUNDS) -> None:
        self._app = app
        self.bounds = bounds
        """The numbers and times of the limits."""
        self.open: dict[tuple[str, int], Connection] = {}
        """The open connections by the address and port of the client."""
        self.waiting: dict[Connection, None] = {}
        """The connections that wait for a request, the longest-waiting first."""
        self.answering: dict[Connection, Request] = {}
        """The connections with a request without a complete response, the oldest request first."""
        self.relay: Relay | None = None
        """The relay of the server's event loop. None on a server without tunnels."""

    def connection_class(self) -> type[asyncio.Protocol]:
        """Return a class for uvicorn's option `http`: a Connection with the limits of this object.

        Each call returns a new class.
        """
        limits = self

        class LimitedConnection(Connection):
            def __init__(self, **options: Any) -> None:
                super().__init__(H11Protocol(**options), limits)

        return LimitedConnection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to `app`, and record in the connection how far the request has come."""
        connection = self.open.get(tuple(scope.get("client") or ()))
        if connection is None:
            # The client has closed the connection before uvicorn read the client's address.
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        connection.begin_request(request)

        async def receive_body() -> Message:
            request.is_body_awaited = not request.is_body_complete
            self._limit_strangers_soon()
            try:
                message = await receive()
            finally:
                request.is_body_awaited = False
            request.is_body_complete = not message.get("more_body", False)
            return message

        async def send_response(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                connection.end_request(request)

        try:
            await self._app(scope, receive_body, send_response)
        finally:
            connection.abandon_request(request)

    def add_waiting(self, connection: "Connection") -> None:
        """Add a connection to `waiting`.

        If more than `waiting_max` connections wait, close the longest-waiting one, strangers first.
        """
        self.waiting[connection] = None
        if len(self.waiting) > self.bounds.waiting_max:
            strangers = (each for each in self.waiting if not each.was_known)
            longest_waiting = next(strangers, next(iter(self.waiting)))
            del self.waiting[longest_waiting]
            longest_waiting.abort()

    def _limit_strangers_soon(self) -> None:
        """Let the event loop call `_limit_strangers` after the present step.

        `_limit_strangers` closes a connection if the server waits for too many bodies of strangers,
        clients without a valid token or signature. By then, a `receive` whose body has already
        arrived has returned, and no longer counts. Do nothing if at most `strangers_max` requests
        are unanswered.
        """
        if len(self.answering) > self.bounds.strangers_max:
            asyncio.get_running_loop().call_soon(self._limit_strangers)

    def _limit_strangers(self) -> None:
        """Close the connection of the oldest request of a stranger with an unfinished body.

        A stranger is a caller whose token or signature the API has not found valid yet. Do nothing
        if the application awaits the bodies of at most `strangers_max` strangers.
        """
        strangers = [
            connection
            for connection, request in self.answering.items()
            if request.is_body_awaited and not request.is_known()
        ]
        if len(strangers) > self.bounds.strangers_max:
            del self.answering[strangers[0]]
            strangers[0].abort()


class Request:
    """The progress of a request in the application."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.is_body_complete = False
        """Whether the application has received the end of the body."""
        self.is_body_awaited = False
        """Whether the application waits for more bytes of the body."""

    def is_known(self) -> bool:
        """Return whether the API has found the token or the signature valid."""
        state = self._scope.get("state", {})
        return "principal" in state or "grant" in state


class Connection(asyncio.Protocol):
    """An HTTP connection with limits on waiting, slow headers and slow reading of responses.

    The connection is closed if a limit is exceeded.

    Args:
        http: uvicorn's protocol object for this connection. It reads requests and writes responses.
        limits: the limits that all connections of the server share.
    """

    def __init__(self, http: asyncio.Protocol, limits: ConnectionLimits) -> None:
        self._http = http
        self._limits = limits
        self._transport: asyncio.Transport
        self._client: tuple[str, int]
        self._request: Request | None = None
        self._head_timeout = Timeout(self.abort)
        self._write_timeout = Timeout(self._end_writing)
        self._close_timeout = Timeout(self.abort)
        self._undecided: bytes | None = b""
        """The first bytes, while they may begin a connection to the relay. None afterwards."""
        self.was_known = False
        """Whether an earlier request had a valid token or signature."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request: asyncio calls this method after a client has connected.

        May close the longest-waiting connection of the server. This connection is closed if the
        headers of a request are not complete within `head_seconds_max`.
        """
        self._transport = transport
        self._client = transport.get_extra_info("peername")[:2]
        self._limits.open[self._client] = self
        self._http.connection_made(transport)
        self._start_waiting()
        self._head_timeout.start(self._limits.bounds.head_seconds_max)

    def data_received(self, data: bytes) -> None:
        """Pass the data to uvicorn in pieces of PIECE_BYTES, until uvicorn closes the connection.

        Without a request, start the timeout of the headers unless the timeout is running. If the
        first request begins a tunnel, pass the connection to the relay.
        """
        if self._undecided is not None:
            data = self._undecided + data
            relay = self._limits.relay
            if relay is not None and data.startswith(_RELAY_HEAD):
                self._forget()
                # Without an error, uvicorn would close the connection.
                self._http.connection_lost(ConnectionResetError("the relay has the connection"))
                relay.adopt(self._transport, data)
                return
            is_undecided = relay is not None and _RELAY_HEAD.startswith(data)
            self._undecided = data if is_undecided else None
            if is_undecided:
                return
        for begin in range(0, len(data), PIECE_BYTES):
            if not self._transport.is_closing():
                self._http.data_received(data[begin : begin + PIECE_BYTES])
        if self._request is None:
            # The data is a part of the headers, or the rest of a body that the application skipped.
            # If the headers are complete, the application is about to begin the request.
            self._head_timeout.start(self._limits.bounds.head_seconds_max)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        """Pass the event on, and start the timeout of the unsent response bytes."""
        self._http.pause_writing()
        self._start_write_timeout()

    def resume_writing(self) -> None:
        """Pass the event on, and stop the timeout: the client has read enough of the response."""
        self._http.resume_writing()
        self._write_timeout.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove this connection from the lists of `limits`, stop all timeouts, and pass the event
        on.
        """
        self._forget()
        self._http.connection_lost(exc)

    def _forget(self) -> None:
        """Remove this connection from the lists of `limits`, and stop all timeouts."""
        self._request = None
        self._limits.answering.pop(self, None)
        self._stop_waiting()
        self._write_timeout.stop()
        self._close_timeout.stop()
        # The client may have opened another connection from the same port.
        if self._limits.open.get(self._client) is self:
            del self._limits.open[self._client]

    def begin_request(self, request: Request) -> None:
        """Stop to wait: the headers of `request` are complete."""
        self._stop_waiting()
        self._request = request
        self._limits.answering[self] = request

    def end_request(self, request: Request) -> None:
        """Wait for the next request: the response to `request` is complete.

        Unsent bytes of the response start the write timeout. Do nothing on a lost connection.
        """
        if self._request is not request:
            return
        self._request = None
        self._limits.answering.pop(self, None)
        self.was_known = self.was_known or request.is_known()
        if self._transport.get_write_buffer_size():
            self._start_write_timeout()
        if not self._transport.is_closing():
            self._start_waiting()

    def abandon_request(self, request: Request) -> None:
        """Abort the connection later, unless uvicorn closes the connection before.

        The application has ended without a complete response to `request`, so uvicorn sends an
        error or closes the connection. The delay is `write_seconds_max`, plus the time of the
        unsent bytes at `write_bytes_per_second`. Do nothing after a complete response and on a lost
        connection.
        """
        if self._request is request:
            self._request = None
            self._limits.answering.pop(self, None)
            self._close_timeout.start(self._write_seconds())

    def abort(self) -> None:
        """Close the connection without sending the unsent bytes."""
        self._transport.abort()

    def _start_waiting(self) -> None:
        """Add this connection to `waiting`. May close the longest-waiting connection."""
        self._limits.add_waiting(self)

    def _stop_waiting(self) -> None:
        """Remove this connection from `waiting`, and cancel the timeout of the headers."""
        self._limits.waiting.pop(self, None)
        self._head_timeout.stop()

    def _start_write_timeout(self) -> None:
        """Start the timeout of the unsent response bytes. A timeout that is running stays."""
        self._write_timeout.start(self._write_seconds())

    def _write_seconds(self) -> float:
        """Return the time that the client has for reading the bytes that are unsent now."""
        unsent_bytes = self._transport.get_write_buffer_size()
        bounds = self._limits.bounds
        return bounds.write_seconds_max + unsent_bytes / bounds.write_bytes_per_second

    def _end_writing(self) -> None:
        """Close the connection if response bytes are still unsent at the end of the timeout."""
        if self._transport.get_write_buffer_size():
            self.abort()


class Timeout:
    """A call of `action` by the running event loop after a time, unless stopped before."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Call the action after `seconds`. Do nothing if the time is already running."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._run)

    def stop(self) -> None:
        """Cancel the call. Do nothing if the time is not running."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._action()
