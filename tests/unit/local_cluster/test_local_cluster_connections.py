"""Tests of connections of an embedded server, with applications of unusual ASGI use."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from local_cluster import connections
from local_cluster.connections import (
    DEFAULT_BOUNDS,
    Connection,
    ConnectionBounds,
    ConnectionLimits,
)
from local_cluster.http_server import EmbeddedServer, open_listener
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.relay.tunnel_ends import SECRET, EchoServer, Ends, receive_exactly

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"

Connect = Callable[[], socket.socket]


@contextmanager
def serving(
    app: ASGIApp, bounds: ConnectionBounds = DEFAULT_BOUNDS, relay_secret: bytes | None = None
) -> Iterator[tuple[Connect, ConnectionLimits]]:
    """Run a server for `app` in a thread; yield a function that connects, and the limits.

    After the block, assert that no connection is left, and stop the server.
    """
    listener = open_listener(0)
    address = listener.getsockname()
    server = EmbeddedServer(app, lambda: None, lambda: None, relay_secret, bounds)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    with ExitStack() as opened:

        def connect() -> socket.socket:
            connection = socket.create_connection(address, ANSWER_SECONDS_MAX)
            return opened.enter_context(connection)

        yield connect, server.limits
    # An ended connection leaves no entry in the limits.
    wait_until(lambda: not server.limits.open)
    assert not server.limits.waiting
    assert not server.limits.answering
    server.should_exit = True
    thread.join(ANSWER_SECONDS_MAX)


async def respond(send: Send, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the body of the request."""
    content, is_complete = b"", False
    while not is_complete:
        message = await receive()
        content += message.get("body", b"")
        is_complete = not message.get("more_body", False)
    await respond(send, content)


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    content = b""
    while not content.endswith(end):
        content += (block := connection.recv(65536))
        assert block, content
    return content


def test_requests_sent_together_are_answered_in_order() -> None:
    with serving(echo) as (connect, limits):
        connection = connect()
        connection.sendall(POST + b"ab" + POST + b"cd" + POST + b"e")
        answers = receive_until(connection, b"cd")
        assert answers.count(b"HTTP/1.1 200") == 2
        assert answers.index(b"ab") < answers.index(b"cd")
        wait_until(lambda: len(limits.answering) == 1)
        connection.sendall(b"f")
        receive_until(connection, b"ef")
        wait_until(lambda: len(limits.waiting) == 1)


def test_complete_body_of_a_stranger_is_not_awaited() -> None:
    with serving(echo, ConnectionBounds(strangers_max=0)) as (connect, _):
        served = connect()
        served.sendall(POST + b"ab")
        receive_until(served, b"ab")
        closed = connect()
        closed.sendall(POST + b"a")
        assert closed.recv(1) == b""


def test_response_without_the_body_lets_the_connection_wait() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"no")

    with serving(refuse) as (connect, limits):
        connection = connect()
        connection.sendall(POST)
        receive_until(connection, b"no")
        wait_until(lambda: len(limits.waiting) == 1)
        connection.sendall(b"ab" + GET)
        receive_until(connection, b"no")


def test_work_after_the_response_leaves_the_next_request_alone() -> None:
    may_end = threading.Event()

    async def linger(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await respond(send, b"begun")
            await asyncio.to_thread(may_end.wait, ANSWER_SECONDS_MAX)
        else:
            await echo(scope, receive, send)

    with serving(linger) as (connect, limits):
        connection = connect()
        connection.sendall(GET)
        receive_until(connection, b"begun")
        connection.sendall(POST + b"a")
        wait_until(lambda: len(limits.answering) == 1)
        may_end.set()
        connection.sendall(b"b")
        receive_until(connection, b"ab")


def test_failed_application_closes_the_connection() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("canary")

    with serving(fail) as (connect, limits):
        connection = connect()
        connection.sendall(GET)
        assert receive_until(connection, b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 500")
        assert connection.recv(1) == b""
        wait_until(lambda: not limits.open)


class StuckTransport(asyncio.Transport):
    """A transport with a client that reads no data. `is_aborted` is set by `abort`."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.is_aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return 10

    def abort(self) -> None:
        self.is_aborted.set()


def test_unread_response_of_a_failed_application_is_not_kept() -> None:
    limits = ConnectionLimits(echo, ConnectionBounds(write_seconds_max=0.1))

    async def fail_request() -> None:
        connection, transport = Connection(asyncio.Protocol(), limits), StuckTransport()
        connection.connection_made(transport)
        request = connections.Request({})
        connection.begin_request(request)
        connection.abandon_request(request)
        # The rest of the response fits into the buffer, and uvicorn may write again.
        connection.resume_writing()
        await transport.is_aborted.wait()
        connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(fail_request(), ANSWER_SECONDS_MAX))
    assert not limits.open


class Recorder(asyncio.Protocol):
    """A protocol with only asyncio's methods, which records the calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)

    def eof_received(self) -> bool | None:
        self.calls.append("eof")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")


def test_connection_needs_asyncios_methods_of_the_protocol_alone() -> None:
    recorder, limits = Recorder(), ConnectionLimits(echo)

    async def exchange() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(recorder, limits), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"a" * (connections.PIECE_BYTES + 1))
        writer.write_eof()
        while "lost" not in recorder.calls:
            await asyncio.sleep(0.01)
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(exchange(), ANSWER_SECONDS_MAX))
    assert recorder.calls[0] == "made"
    assert recorder.calls[-2:] == ["eof", "lost"]
    pieces = [call for call in recorder.calls if isinstance(call, bytes)]
    assert max(map(len, pieces)) <= connections.PIECE_BYTES
    assert sum(map(len, pieces)) == connections.PIECE_BYTES + 1


def test_server_is_the_relay_of_tunnels_at_the_same_port() -> None:
    program = EchoServer()
    with serving(echo, relay_secret=SECRET) as (connect, limits):
        with connect() as probe:
            host, port = probe.getpeername()
        with Ends(lambda: f"http://{host}:{port}", program.port) as ends, ends.connect() as opened:
            opened.sendall(b"through the relay")
            assert receive_exactly(opened, 17) == b"through the relay"
            # The connections of the relay do not count as connections of the API.
            wait_until(lambda: not limits.open)
            request = connect()
            request.sendall(POST + b"ab")
            receive_until(request, b"ab")
            request.close()
    program.close()


def test_request_of_a_tunnel_in_pieces_reaches_the_relay() -> None:
    request = b"GET /tunnel HTTP/1.1\r\nHost: x\r\n\r\n"
    with serving(echo, relay_secret=SECRET) as (connect, _):
        for cut in (1, 5, 11, 12, 20):
            connection = connect()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(request[:cut])
            wait_for_read(connection)
            connection.sendall(request[cut:])
            assert b"426 Refused" in connection.recv(65536), cut
            connection.close()


def test_other_requests_that_begin_alike_reach_the_api() -> None:
    with serving(echo, relay_secret=SECRET) as (connect, _):
        for path in (b"/", b"/tunnels", b"/tunnel/x"):
            connection = connect()
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP/1.1 200" in connection.recv(65536), path
            connection.close()


def wait_for_read(connection: socket.socket) -> None:
    """Wait until the peer's kernel has acknowledged all sent bytes."""
    buffer = bytearray(4)

    def unsent_bytes() -> int:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, buffer)
        return int.from_bytes(buffer, sys.byteorder)

    wait_until(lambda: unsent_bytes() == 0)
