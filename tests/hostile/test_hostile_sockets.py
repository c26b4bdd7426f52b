"""Malformed bytes on a socket of the running embedded server.

Each request is refused or cut off without an effect, and other callers are served.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api.request_bounds import RequestBounds
from local_cluster.connections import DEFAULT_BOUNDS, ConnectionBounds
from tests.hostile.live_server import TOKEN, Live, receive_all, serving, statuses
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import poll_until, wait_until
from tests.unit.api.cluster import TOKENS, V1


@pytest.mark.end_to_end
def test_server_listens_on_the_loopback_address_only(tmp_path: Path) -> None:
    one = EmbeddedCluster(tmp_path / "home")
    try:
        client = one.start()
        assert one.process is not None
        folder = Path(f"/proc/{one.process.pid}")
        inodes = {link.readlink().name for link in (folder / "fd").iterdir() if link.is_symlink()}
        listening_at = [
            fields[1]
            for table in ("tcp", "tcp6")
            for line in (folder / "net" / table).read_text().splitlines()[1:]
            if (fields := line.split())[3] == "0A" and f"socket:[{fields[9]}]" in inodes
        ]
        # 127.0.0.1 in the byte order of the machine. The relay of tunnels has the same port.
        port = int(client.url.rpartition(":")[2])
        assert listening_at == [f"0100007F:{port:04X}"]
    finally:
        one.end()


@pytest.mark.parametrize(
    ("request_line", "host", "status"),
    [
        ("GET /api/v1/health HTTP/1.1", "evil.test", 403),
        ("GET /api/v1/health HTTP/1.1", "127.0.0.1.evil.test", 403),
        ("GET /api/v1/health HTTP/1.1", "127.0.0.1@evil.test", 403),
        ("GET /api/v1/health HTTP/1.1", "2130706433", 403),
        ("GET /api/v1/health HTTP/1.1", "0", 403),
        ("GET /api/v1/health HTTP/1.1", "[::ffff:127.0.0.1]", 403),
        ("GET /api/v1/health HTTP/1.1", "[::1]", 200),
        ("GET /api/v1/health HTTP/1.1", None, 400),
        ("GET /api/v1/health HTTP/1.0", None, 403),
        ("GET http://evil.test/api/v1/health HTTP/1.1", "127.0.0.1", 404),
        ("GET http://127.0.0.1/api/v1/experiments HTTP/1.1", "127.0.0.1", 404),
        ("CONNECT 127.0.0.1:22 HTTP/1.1", "127.0.0.1", 404),
        ("OPTIONS * HTTP/1.1", "127.0.0.1", 404),
        ("GET //evil.test/api/v1/health HTTP/1.1", "127.0.0.1", 404),
        ("TRACE /api/v1/health HTTP/1.1", "127.0.0.1", 405),
        ("GET /api/v1/health", "127.0.0.1", 400),
        ("GET /api/v1/hea lth HTTP/1.1", "127.0.0.1", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "127.0.0.1", 400),
    ],
    ids=str,
)
def test_request_for_a_foreign_host_is_refused(
    live: Live, request_line: str, host: str | None, status: int
) -> None:
    named = "" if host is None else f"Host: {host}\r\n"
    head = f"{request_line}\r\n{named}Connection: close\r\n\r\n"
    assert statuses(live.send(head.encode("latin-1"))) == [status]


SMUGGLED = f"POST {V1}/experiments/1/pause HTTP/1.1\r\nHost: 127.0.0.1\r\n{TOKEN}\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: -1",
        "Content-Length: +4",
        "Content-Length: 0x4",
        "Content-Length: 4 4",
        "Content-Length: 99999999999999999999999",
        "Content-Length : 4",
        " Content-Length: 4",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \x0bchunked",
        "X: a\x00b",
        "X: a\rb",
        "no colon at all",
        ": no name",
    ],
)
def test_request_with_ambiguous_length_executes_no_smuggled_request(
    live: Live, headers: str
) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}{headers}\r\n\r\n"
    # As a body of four bytes, as an immediate end of chunks, and as a single chunk.
    for body in ("{}\r\n", "0\r\n\r\n", "4\r\n{}\r\n\r\n0\r\n\r\n"):
        answers = live.send((head + body + SMUGGLED).encode("latin-1"))
        assert all(400 <= status < 600 for status in statuses(answers)), answers
        assert 500 not in statuses(answers)
    assert live.state() == "ACTIVE"


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
        b"2;" + b"x" * 100_000 + b"\r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffffffffff\r\n{}",
        b"2\r\n{}XX0\r\n\r\n",
        b"2\n{}\n0\n\n" * 3,
    ],
    ids=["no number", "negative", "a long extension", "huge", "no end", "bare line feeds"],
)
def test_malformed_chunks_end_the_connection(live: Live, chunks: bytes) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Transfer-Encoding: chunked\r\n\r\n"
    answers = live.send(head.encode() + chunks + SMUGGLED.encode())
    assert all(400 <= status < 600 for status in statuses(answers)), answers
    assert len(statuses(answers)) <= 1
    assert live.state() == "ACTIVE"


@pytest.mark.parametrize(
    "headers",
    [
        "X: " + "a" * 100_000 + "\r\n",
        "".join(f"X{n}: {n}\r\n" for n in range(20_000)),
        "Authorization: Bearer " + "a" * 60_000 + "\r\n",
        "Cookie: " + "a=b; " * 50_000 + "\r\n",
    ],
    ids=["one long", "many", "a long token", "cookies"],
)
def test_endless_headers_are_cut_off(live: Live, headers: str) -> None:
    head = f"GET {V1}/experiments HTTP/1.1\r\n{live.host}{headers}\r\n"
    assert statuses(live.send(head.encode())) in ([400], [401], [])


def test_long_target_is_cut_off(live: Live) -> None:
    head = f"GET {V1}/experiments?{'a' * 200_000} HTTP/1.1\r\n{live.host}\r\n"
    assert statuses(live.send(head.encode())) in ([400], [401], [])


@pytest.mark.parametrize("names", [("Authorization", "Authorization"), ("authorization",) * 2])
def test_request_with_two_tokens_is_refused(live: Live, names: tuple[str, str]) -> None:
    tokens = (TOKENS[Role.ADMIN], TOKENS[Role.USER])
    headers = "".join(f"{n}: Bearer {t}\r\n" for n, t in zip(names, tokens, strict=True))
    assert statuses(live.ask("GET /experiments", headers)) == [401]


def test_request_with_two_idempotency_keys_is_refused(live: Live) -> None:
    headers = f"{TOKEN}Idempotency-Key: one\r\nIdempotency-Key: two\r\n"
    assert statuses(live.ask("POST /tokens", headers)) == [422]


@pytest.fixture
def hasty(live: Live) -> Iterator[Live]:
    """Yield a server with short time limits."""
    bounds = ConnectionBounds(head_seconds_max=0.4)
    with serving(live.cluster, bounds, RequestBounds(body_seconds_max=0.4)) as server:
        yield server


def send_slowly(live: Live, first: bytes) -> tuple[bytes, float]:
    """Send `first` and then single bytes until the server closes.

    Return the answer and the elapsed seconds.
    """
    began = time.monotonic()
    with live.connect() as connection:
        connection.sendall(first)
        connection.settimeout(0.05)
        content = b""

        def is_closed() -> bool:
            nonlocal content
            try:
                connection.sendall(b"a")
                block = connection.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                return True
            content += block
            return not block

        poll_until(is_closed, 5.0, "the end of a connection that is slow", pause_seconds=0.0)
        return content, time.monotonic() - began


@pytest.mark.parametrize("sent", ["", "GET", "GET / HTTP/1.1\r\nX: ", "POST /x HTTP/1.1\r\nHost:"])
def test_slow_head_is_cut_off(hasty: Live, sent: str) -> None:
    content, seconds = send_slowly(hasty, sent.encode())
    assert content == b""
    assert seconds > 0.3


def test_slow_second_head_is_cut_off(hasty: Live) -> None:
    first = f"GET {V1}/health HTTP/1.1\r\n{hasty.host}\r\nGET "
    content, _ = send_slowly(hasty, first.encode())
    assert statuses(content) == [200]


def test_slow_body_is_refused(hasty: Live) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{hasty.host}{TOKEN}Content-Length: 10000\r\n\r\n"
    content, _ = send_slowly(hasty, head.encode())
    # Not 4xx: an agent would never repeat such a call.
    assert statuses(content)[:1] == [503]
    assert b"the body arrived too slowly" in content


def test_unwanted_slow_body_is_cut_off(hasty: Live) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{hasty.host}Content-Length: 10000000\r\n\r\n"
    content, _ = send_slowly(hasty, head.encode())
    assert statuses(content) == [401]


def test_body_at_the_required_speed_is_accepted(live: Live) -> None:
    body = json.dumps({"sha256": "0" * 64, "size": 10, "x": "y" * 400_000}).encode()
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    with (
        serving(live.cluster, requests=RequestBounds(body_seconds_max=0.2)) as hasty,
        hasty.connect() as connection,
    ):
        connection.sendall(head.encode())
        # 400 KB in 1 s; the limit is 0.2 s and a second for each 16 KiB: 25 s.
        for start in range(0, len(body), 40_000):
            connection.sendall(body[start : start + 40_000])
            time.sleep(0.1)
        answers = receive_all(connection)
    assert b"is not a known field" in answers or statuses(answers) == [200], answers


def test_silent_connections_block_no_other_caller(live: Live) -> None:
    silent = [live.connect() for _ in range(2 * DEFAULT_BOUNDS.waiting_max)]
    try:
        for connection in silent[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(5):
            assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        # The longest-waiting connections are closed.
        assert len(live.limits.waiting) <= DEFAULT_BOUNDS.waiting_max
        assert receive_all(silent[0]) == b""
    finally:
        for connection in silent:
            connection.close()


def test_idle_connections_after_an_answer_block_no_other_caller(live: Live) -> None:
    request = f"GET {V1}/health HTTP/1.1\r\n{live.host}\r\n".encode()
    stay = []
    try:
        for _ in range(DEFAULT_BOUNDS.waiting_max + 50):
            connection = live.connect()
            stay.append(connection)
            connection.sendall(request)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        assert len(live.limits.waiting) <= DEFAULT_BOUNDS.waiting_max
    finally:
        for connection in stay:
            connection.close()


def test_aborted_requests_leave_no_connection_behind(live: Live) -> None:
    for cut in (b"", b"{", b'{"config": "x"'):
        head = f"POST {V1}/experiments HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: 500\r\n\r\n"
        with live.connect() as connection:
            connection.sendall(head.encode() + cut)
    answer = live.ask("GET /experiments", TOKEN)
    assert len(json.loads(answer.split(b"\r\n\r\n", 1)[1])["items"]) == 1
    wait_until(lambda: len(live.limits.waiting) == 0)
