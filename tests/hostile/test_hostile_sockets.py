"""Bytes on a socket that no honest client sends, to the embedded server as it runs: each is
answered or cut off, nothing of it is carried out, and whoever else asks is served.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.api import request_limits as limits
from local_cluster import connections
from tests.hostile.live_server import TOKEN, Live, receive_all, statuses
from tests.integration.embedded_cluster import EmbeddedCluster
from tests.patience import poll_until, wait_until
from tests.unit.api.cluster import TOKENS, V1


@pytest.mark.end_to_end
def test_the_server_listens_on_the_loopback_address_only(tmp_path: Path) -> None:
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
        # 127.0.0.1 in the byte order of the machine.
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
def test_a_request_for_somebody_else_is_not_ours(
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
def test_a_request_with_two_ends_carries_out_nothing_that_is_hidden_in_it(
    live: Live, headers: str
) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}{headers}\r\n\r\n"
    # As a body of four bytes, as chunks that end at once, and as one chunk.
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
def test_chunks_that_are_none_end_the_connection(live: Live, chunks: bytes) -> None:
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
def test_headers_without_end_are_cut_off(live: Live, headers: str) -> None:
    head = f"GET {V1}/experiments HTTP/1.1\r\n{live.host}{headers}\r\n"
    assert statuses(live.send(head.encode())) in ([400], [401], [])


def test_a_long_target_is_cut_off(live: Live) -> None:
    head = f"GET {V1}/experiments?{'a' * 200_000} HTTP/1.1\r\n{live.host}\r\n"
    assert statuses(live.send(head.encode())) in ([400], [401], [])


@pytest.mark.parametrize("names", [("Authorization", "Authorization"), ("authorization",) * 2])
def test_of_two_tokens_neither_counts(live: Live, names: tuple[str, str]) -> None:
    tokens = (TOKENS[Role.ADMIN], TOKENS[Role.USER])
    headers = "".join(f"{n}: Bearer {t}\r\n" for n, t in zip(names, tokens, strict=True))
    assert statuses(live.ask("GET /experiments", headers)) == [401]


def test_two_keys_of_one_request_are_refused_or_the_same(live: Live) -> None:
    headers = f"{TOKEN}Idempotency-Key: one\r\nIdempotency-Key: two\r\n"
    assert statuses(live.ask("POST /tokens", headers)) == [422]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of time that a test can wait for."""
    monkeypatch.setattr(connections, "HEAD_SECONDS_MAX", 0.4)
    monkeypatch.setattr(limits, "BODY_SECONDS_MAX", 0.4)


def send_slowly(live: Live, first: bytes) -> tuple[bytes, float]:
    """Sends a beginning and then a byte again and again until the server closes; what is answered,
    and after how many seconds.
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


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("sent", ["", "GET", "GET / HTTP/1.1\r\nX: ", "POST /x HTTP/1.1\r\nHost:"])
def test_a_head_that_comes_slowly_is_not_waited_for(live: Live, sent: str) -> None:
    content, seconds = send_slowly(live, sent.encode())
    assert content == b""
    assert seconds > 0.3


@pytest.mark.usefixtures("hasty")
def test_a_second_head_that_comes_slowly_is_not_waited_for(live: Live) -> None:
    first = f"GET {V1}/health HTTP/1.1\r\n{live.host}\r\nGET "
    content, _ = send_slowly(live, first.encode())
    assert statuses(content) == [200]


@pytest.mark.usefixtures("hasty")
def test_a_body_that_comes_slowly_is_refused(live: Live) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: 10000\r\n\r\n"
    content, _ = send_slowly(live, head.encode())
    # Not the fault of what it holds: an agent would send that no more.
    assert statuses(content)[:1] == [503]
    assert b"the body arrived too slowly" in content


@pytest.mark.usefixtures("hasty")
def test_a_body_that_nobody_wants_is_not_taken_for_ever(live: Live) -> None:
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}Content-Length: 10000000\r\n\r\n"
    content, _ = send_slowly(live, head.encode())
    assert statuses(content) == [401]


def test_a_body_that_comes_as_fast_as_it_must_is_taken(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS_MAX", 0.2)
    body = json.dumps({"sha256": "0" * 64, "size": 10, "x": "y" * 400_000}).encode()
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    with live.connect() as connection:
        connection.sendall(head.encode())
        # 400 KB in 1 s, where 16 KiB a second on top of 0.2 s are asked for: 25 s.
        for start in range(0, len(body), 40_000):
            connection.sendall(body[start : start + 40_000])
            time.sleep(0.1)
        answers = receive_all(connection)
    assert b"is not a known field" in answers or statuses(answers) == [200], answers


def test_many_connections_that_say_nothing_keep_nobody_out(live: Live) -> None:
    silent = [live.connect() for _ in range(2 * connections.WAITING_MAX)]
    try:
        for connection in silent[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(5):
            assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        # Those that wait longest are gone.
        assert len(live.limits.waiting) <= connections.WAITING_MAX
        assert receive_all(silent[0]) == b""
    finally:
        for connection in silent:
            connection.close()


def test_connections_that_were_served_and_stay_keep_nobody_out(live: Live) -> None:
    asked = f"GET {V1}/health HTTP/1.1\r\n{live.host}\r\n".encode()
    stay = []
    try:
        for _ in range(connections.WAITING_MAX + 50):
            connection = live.connect()
            stay.append(connection)
            connection.sendall(asked)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        assert len(live.limits.waiting) <= connections.WAITING_MAX
    finally:
        for connection in stay:
            connection.close()


def test_one_who_leaves_in_the_middle_leaves_nothing(live: Live) -> None:
    for cut in (b"", b"{", b'{"config": "x"'):
        head = f"POST {V1}/experiments HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: 500\r\n\r\n"
        with live.connect() as connection:
            connection.sendall(head.encode() + cut)
    answer = live.ask("GET /experiments", TOKEN)
    assert len(json.loads(answer.split(b"\r\n\r\n", 1)[1])["items"]) == 1
    wait_until(lambda: len(live.limits.waiting) == 0)
