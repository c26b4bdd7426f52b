"""Callers that hold connections without end: each has a limited share; agents have a reserve."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.client import HTTPResponse
from pathlib import Path

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import TokenStore
from control_plane.api.authentication import authenticate
from control_plane.objects.store import ObjectKey
from local_cluster import connections
from tests.hostile.live_server import TOKEN, Live, receive_all, statuses
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.api.cluster import NOW_MS, TOKENS, V1

KEY = ObjectKey("logs/large")
# More than the system's buffers of a connection take.
SIZE = 24 * 1024 * 1024


@pytest.fixture
def download(live: Live) -> Iterator[bytes]:
    """Yield the head of a request for a large object."""
    live.cluster.objects.put(KEY, bytes(SIZE))
    signed = live.cluster.objects.signed_url("GET", KEY, expires_ms=NOW_MS + 1000)
    yield f"GET {signed.url} HTTP/1.1\r\n{live.host}Connection: close\r\n\r\n".encode()
    live.cluster.objects.delete(KEY)


def open_unread(live: Live, request: bytes) -> socket.socket:
    """Return a connection that sends the request and does not read the answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(ANSWER_SECONDS_MAX)
    connection.connect(("127.0.0.1", live.port))
    connection.sendall(request)
    return connection


def is_answering(live: Live, count: int) -> bool:
    return len(live.limits.answering) == count


def open_files() -> int:
    """Return how often this process has the object open."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(_target(link).endswith("/logs/large") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def test_unread_downloads_are_limited_per_caller(
    live: Live, download: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = live.cluster.app.state.request_bounds
    monkeypatch.setattr(bounds, "caller_max", 3)
    with ExitStack() as unread:
        for _ in range(3):
            unread.enter_context(open_unread(live, download))
        wait_until(lambda: bounds.counts["logs/large"] == 3)
        refused = live.send(download, then_close=False)
        assert statuses(refused) == [429]
        assert b"wait until one has finished" in refused
        # Other callers are served, and agents even after the limit of all others.
        assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        monkeypatch.setattr(bounds, "others_max", 3)
        assert statuses(live.ask("GET /experiments", TOKEN)) == [429]
        agent = f"Authorization: Bearer {TOKENS[Role.AGENT]}\r\n"
        assert statuses(live.ask("POST /agents/node/sync", agent)) in ([403], [422])
    wait_until(lambda: not bounds.counts and not bounds.others)
    wait_until(lambda: open_files() == 0)


def test_unread_answer_is_dropped_after_a_while(
    live: Live, download: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS_MAX", 0.3)
    monkeypatch.setattr(connections, "WRITE_BYTES_PER_SECOND", 2**30)
    ended: list[connections.Connection] = []
    end_writing = connections.Connection._end_writing

    def record_end(connection: connections.Connection) -> None:
        end_writing(connection)
        ended.append(connection)

    monkeypatch.setattr(connections.Connection, "_end_writing", record_end)
    bounds = live.cluster.app.state.request_bounds
    with open_unread(live, download) as connection:
        wait_until(lambda: bool(ended) and not bounds.counts and open_files() == 0)
        assert len(receive_all(connection)) < SIZE
    monkeypatch.setattr(connections, "WRITE_SECONDS_MAX", ANSWER_SECONDS_MAX)
    assert len(live.send(download, then_close=False)) > SIZE


def test_slow_bodies_of_strangers_block_no_other_caller(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STRANGERS_MAX", 3)
    # An instance proves its identity by the body: no token exists before.
    head = f"PUT {V1}/instances/i-1/identity HTTP/1.1\r\n{live.host}Content-Length: 100\r\n\r\n"
    known = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: 2\r\n\r\n"
    answering = live.limits.answering
    with ExitStack() as opened:
        honest = opened.enter_context(live.connect())
        honest.sendall(known.encode())
        wait_until(lambda: len(answering) == 1)
        wait_until(lambda: next(iter(answering.values())).is_known())
        strangers = []
        for count in (2, 3, 4, 4, 4):
            strangers.append(opened.enter_context(live.connect()))
            strangers[-1].sendall(head.encode())
            # The known caller, and three strangers at most.
            wait_until(partial(is_answering, live, count))
        # The two oldest strangers are closed, and the known caller may be slow.
        assert [receive_all(each) for each in strangers[:2]] == [b"", b""]
        assert statuses(live.ask("GET /experiments", TOKEN)) == [200]
        honest.sendall(b"{}")
        assert honest.recv(65536).startswith(b"HTTP/1.1 422")
    wait_until(lambda: not answering)


def test_known_callers_may_idle_longer_than_strangers(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All connections of earlier tests are closed.
    wait_until(lambda: not live.limits.waiting)
    monkeypatch.setattr(connections, "WAITING_MAX", 4)
    with ExitStack() as opened:
        known = opened.enter_context(live.connect())
        assert ask_and_stay(live, known) == 200
        silent = [opened.enter_context(live.connect()) for _ in range(6)]
        # Of seven idle connections, the three strangers that have been idle longest are closed.
        assert [receive_all(each) for each in silent[:3]] == [b"", b"", b""]
        assert ask_and_stay(live, known) == 200


def ask_and_stay(live: Live, connection: socket.socket) -> int:
    """Send a request and read the whole answer; return the status. The connection stays open."""
    head = f"GET {V1}/experiments HTTP/1.1\r\n{live.host}{TOKEN}\r\n"
    connection.sendall(head.encode())
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


@pytest.mark.parametrize("is_body_late", [False, True])
def test_caller_that_waits_for_a_thread_is_not_a_stranger(
    live: Live, monkeypatch: pytest.MonkeyPatch, is_body_late: bool
) -> None:
    monkeypatch.setattr(connections, "STRANGERS_MAX", 1)
    may_answer = threading.Event()

    def wait_and_authenticate(tokens: TokenStore, token: str) -> Principal:
        assert may_answer.wait(ANSWER_SECONDS_MAX)
        return authenticate(tokens, token)

    monkeypatch.setattr("control_plane.api.route_guards.authenticate", wait_and_authenticate)
    # More than the server reads before a handler asks for the body.
    body = json.dumps({"sha256": "0" * 64, "size": 1, "x": "y" * 150_000}).encode()
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: {len(body)}\r\n\r\n"
    with ExitStack() as opened:
        callers = []
        for count in (1, 2, 3):
            callers.append(opened.enter_context(live.connect()))
            callers[-1].sendall(head.encode() + (b"" if is_body_late else body))
            wait_until(partial(is_answering, live, count))
        may_answer.set()
        for caller in callers:
            if is_body_late:
                caller.sendall(body)
            assert caller.recv(65536).startswith(b"HTTP/1.1 422")
