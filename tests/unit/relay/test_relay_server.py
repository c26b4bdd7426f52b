"""The relay on real sockets: pairs, tickets, and hostile clients."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.relay_link import RelayUnavailable, dial_relay
from detcloud.shared.tunnel.tickets import Side, make_binding
from detcloud.shared.tunnel.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TRY_AGAIN,
    Control,
    WebSocketReader,
    encode,
)
from relay.bounds import DEFAULT_BOUNDS
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.relay.relay_thread import RelayThread
from tests.unit.relay.tunnel_ends import HOST, SECRET, make_ticket

MASK = b"\x01\x02\x03\x04"
CONNECTIONS: list[socket.socket] = []
"""The connections that the present test has opened."""


@pytest.fixture(autouse=True)
def _closed_connections() -> Iterator[None]:
    yield
    while CONNECTIONS:
        CONNECTIONS.pop().close()


def connect(port: int) -> socket.socket:
    """Return a connection that is closed at the end of the test."""
    connection = socket.create_connection((HOST, port))
    connection.settimeout(ANSWER_SECONDS_MAX)
    CONNECTIONS.append(connection)
    return connection


@pytest.fixture
def relay() -> Iterator[RelayThread]:
    thread = RelayThread(SECRET, HOST)
    thread.start()
    yield thread
    thread.stop()


class Client:
    """A client of the relay that sends and expects raw WebSocket frames."""

    def __init__(self, port: int, ticket: str, head: str = "") -> None:
        self.connection = connect(port)
        self.reader = WebSocketReader(expects_masks=False)
        self.connection.sendall((head or request_head(ticket)).encode("latin-1"))
        self.answer, self.rest = self._read_head()
        self.found: list[memoryview | Control] = []

    @property
    def status(self) -> int:
        return int(self.answer.split(" ")[1])

    def _read_head(self) -> tuple[str, bytes]:
        received = b""
        while b"\r\n\r\n" not in received:
            part = self.connection.recv(4096)
            if not part:
                break
            received += part
        head, _, rest = received.partition(b"\r\n\r\n")
        return head.decode(), rest

    def send(self, payload: bytes) -> None:
        self.connection.sendall(encode(BINARY, payload, MASK))

    def receive(self, count: int) -> bytes:
        """Return payload of at least `count` bytes, or less at the connection's end."""
        data = b""
        while len(data) < count:
            part, self.rest = self.rest or self.connection.recv(65_536), b""
            if not part:
                break
            for piece in self.reader.feed(part):
                if isinstance(piece, memoryview):
                    data += piece
                else:
                    self.found.append(piece)
        return data

    def close_frame(self) -> Control:
        """Return the close frame, after reading to the end."""
        with contextlib.suppress(ConnectionError):
            self.receive(1 << 40)
        [close] = [one for one in self.found if isinstance(one, Control) and one.opcode == CLOSE]
        return close


def request_head(ticket: str) -> str:
    return (
        f"GET /tunnel HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {ticket}\r\n\r\n"
    )


def open_pair(port: int) -> tuple[Client, Client]:
    return (Client(port, make_ticket(Side.USER)), Client(port, make_ticket(Side.AGENT)))


def test_bytes_pass_in_both_directions(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    assert (user.status, agent.status) == (101, 101)
    user.send(b"forth")
    assert agent.receive(5) == b"forth"
    agent.send(b"back")
    assert user.receive(4) == b"back"


def test_frames_of_a_read_are_joined(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    user.send(b"a")
    assert agent.receive(1) == b"a"
    frames = [encode(BINARY, b"b", MASK), encode(PING, b"", MASK), encode(BINARY, b"c", MASK)]
    user.connection.sendall(b"".join(frames))
    # A single frame without a mask: two bytes of head, and the payload of both.
    assert agent.connection.recv(100) == b"\x82\x02bc"
    user.connection.setblocking(True)
    assert user.connection.recv(100) == encode(PONG, b"")


def test_bytes_sent_before_the_other_end_came_arrive(relay: RelayThread) -> None:
    user = Client(relay.port, make_ticket(Side.USER))
    user.send(b"early")
    agent = Client(relay.port, make_ticket(Side.AGENT))
    assert agent.receive(5) == b"early"


def test_bytes_sent_with_the_request_arrive(relay: RelayThread) -> None:
    agent = Client(relay.port, make_ticket(Side.AGENT))
    frame = encode(BINARY, b"at once", MASK).decode("latin-1")
    Client(relay.port, "", request_head(make_ticket(Side.USER)) + frame)
    assert agent.receive(7) == b"at once"


@pytest.mark.parametrize(
    ("ticket", "reason"),
    [
        (make_ticket(Side.USER, secret=b"o" * 32), "signature"),
        (make_ticket(Side.USER, age_ms=60_000), "expired"),
        ("nonsense", "signature"),
    ],
)
def test_invalid_tickets_are_refused(relay: RelayThread, ticket: str, reason: str) -> None:
    client = Client(relay.port, ticket)
    assert client.status == 403
    assert reason in client.answer


def test_replayed_ticket_is_refused(relay: RelayThread) -> None:
    ticket = make_ticket(Side.USER)
    assert Client(relay.port, ticket).status == 101
    replayed = Client(relay.port, ticket)
    assert replayed.status == 403
    assert "used already" in replayed.answer


@pytest.mark.parametrize(
    "other",
    [
        make_binding("ann", "3.2", [80]),
        make_binding("bob", "3.1", [80]),
        make_binding("ann", "3.1", [81]),
    ],
)
def test_tickets_of_another_epoch_user_or_port_do_not_meet(relay: RelayThread, other: str) -> None:
    user = Client(relay.port, make_ticket(Side.USER, binding=other))
    agent = Client(relay.port, make_ticket(Side.AGENT))
    own = Client(relay.port, make_ticket(Side.USER))
    user.send(b"stranger")
    own.send(b"own")
    assert agent.receive(3) == b"own"


def test_new_ticket_replaces_a_half_open_connection(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    again = Client(relay.port, make_ticket(Side.USER))
    assert again.status == 101
    assert "another connection" in user.close_frame().reason
    assert agent.close_frame().code == 1001
    second = Client(relay.port, make_ticket(Side.AGENT))
    again.send(b"again")
    assert second.receive(5) == b"again"


def test_lost_end_closes_the_other_end(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    user.connection.close()
    assert "other end left" in agent.close_frame().reason


def test_ping_is_answered_and_close_is_passed_on(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    user.connection.sendall(encode(PING, b"?", MASK))
    while Control(PONG, b"?") not in user.found:
        agent.send(b"x")
        assert user.receive(1)
    user.connection.sendall(encode(CLOSE, b"", MASK))
    assert agent.close_frame().code == 1001


@pytest.mark.parametrize(
    "frame", [encode(BINARY, b"no mask"), b"\x81\x81" + MASK + b"x", b"\xff" * 20]
)
def test_invalid_frames_end_the_pair(relay: RelayThread, frame: bytes) -> None:
    user, agent = open_pair(relay.port)
    user.connection.sendall(frame)
    assert user.close_frame().code in (1002, 1003)
    agent.close_frame()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        ("GET /other HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        ("POST /tunnel HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
        ("GET /tunnel HTTP/1.1\r\nHost: x\r\n\r\n", 426),
        ("nonsense\r\n\r\n", 400),
        (request_head("t").replace("Bearer t", "Basic t"), 401),
        (request_head("t").replace(": 13", ": 12"), 426),
        ("GET /tunnel HTTP/1.1\r\nX: " + "y" * 20_000 + "\r\n", 431),
    ],
)
def test_other_requests_get_a_status(relay: RelayThread, head: str, status: int) -> None:
    assert Client(relay.port, "", head).status == status


def test_slow_reader_stops_the_sender(relay: RelayThread) -> None:
    user, agent = open_pair(relay.port)
    user.connection.settimeout(1)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 1 << 30:
            sent += user.connection.send(encode(BINARY, bytes(65_536), MASK))
    # The bounds of the relay, and the buffers of four sockets.
    assert sent < 64 << 20
    agent.connection.close()


def test_lone_end_is_told_to_try_again() -> None:
    bounds = replace(DEFAULT_BOUNDS, waiting_seconds_max=0)
    thread = RelayThread(SECRET, HOST, bounds=bounds)
    thread.start()
    close = Client(thread.port, make_ticket(Side.USER)).close_frame()
    thread.stop()
    assert close.code == TRY_AGAIN
    assert "did not come" in close.reason


def test_slow_requests_and_many_strangers_are_closed() -> None:
    bounds = replace(DEFAULT_BOUNDS, head_seconds_max=0.1, strangers_max=2)
    thread = RelayThread(SECRET, HOST, bounds=bounds)
    thread.start()
    strangers = [connect(thread.port) for _ in range(3)]
    for stranger in strangers:
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
    assert Client(thread.port, make_ticket(Side.USER)).status == 101
    thread.stop()


def test_too_many_connections_get_a_status() -> None:
    thread = RelayThread(SECRET, HOST, bounds=replace(DEFAULT_BOUNDS, connections_max=1))
    thread.start()
    first = Client(thread.port, make_ticket(Side.USER))
    assert Client(thread.port, make_ticket(Side.AGENT)).status == 503
    first.connection.close()
    wait_until(lambda: Client(thread.port, make_ticket(Side.AGENT)).status == 101)
    thread.stop()


def test_dialling_end_reports_the_refusal(relay: RelayThread) -> None:
    key, other = make_key(), make_key()
    channel = SecureChannel(key, other.certificate, is_agent=False)
    with pytest.raises(RelayUnavailable, match="403: the ticket has expired") as refused:
        dial_relay(
            f"http://{HOST}:{relay.port}", "", make_ticket(Side.USER, age_ms=70_000), channel
        )
    assert refused.value.status == 403


def test_unreachable_relay_is_reported() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    key, other = make_key(), make_key()
    channel = SecureChannel(key, other.certificate, is_agent=False)
    with pytest.raises(RelayUnavailable, match="cannot be reached"):
        dial_relay(f"http://{HOST}:{port}", "", make_ticket(Side.USER), channel)


def test_thread_that_cannot_listen_raises(relay: RelayThread) -> None:
    with pytest.raises(OSError, match="address"):
        RelayThread(SECRET, HOST, relay.port).start()
