"""Callers that hold connections without end: each has a limited share; agents have a reserve."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPResponse
from pathlib import Path

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import TokenStore
from control_plane.api.request_bounds import RequestBounds
from control_plane.objects.store import ObjectKey
from local_cluster.connections import ConnectionBounds
from tests.hostile.live_server import TOKEN, Live, receive_all, serving, statuses
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


def test_unread_downloads_are_limited_per_caller(live: Live, download: bytes) -> None:
    bounds = RequestBounds(caller_max=3)
    with serving(live.cluster, requests=bounds) as limited:
        with ExitStack() as unread:
            for _ in range(3):
                unread.enter_context(open_unread(limited, download))
            wait_until(lambda: bounds.counts["logs/large"] == 3)
            refused = limited.send(download, then_close=False)
            assert statuses(refused) == [429]
            assert b"wait until one has finished" in refused
            # Other callers are served.
            assert statuses(limited.ask("GET /experiments", TOKEN)) == [200]
        wait_until(lambda: not bounds.counts and not bounds.others)
    wait_until(lambda: open_files() == 0)


def test_agents_are_served_beyond_the_common_limit(live: Live, download: bytes) -> None:
    bounds = RequestBounds(others_max=3)
    with serving(live.cluster, requests=bounds) as limited, ExitStack() as unread:
        for _ in range(3):
            unread.enter_context(open_unread(limited, download))
        wait_until(lambda: bounds.others == 3)
        assert statuses(limited.ask("GET /experiments", TOKEN)) == [429]
        agent = f"Authorization: Bearer {TOKENS[Role.AGENT]}\r\n"
        assert statuses(limited.ask("POST /agents/node/sync", agent)) in ([403], [422])


class RecordedBounds(RequestBounds):
    """Bounds that count the ended requests with a signature."""

    ended = 0

    @contextmanager
    def count_signed(self, key: ObjectKey) -> Iterator[None]:
        try:
            with super().count_signed(key):
                yield
        finally:
            self.ended += 1


def test_unread_answer_is_dropped_after_a_while(live: Live, download: bytes) -> None:
    hasty = ConnectionBounds(write_seconds_max=0.3, write_bytes_per_second=2**30)
    bounds = RecordedBounds()
    with (
        serving(live.cluster, hasty, bounds) as impatient,
        open_unread(impatient, download) as connection,
    ):
        wait_until(lambda: bounds.ended == 1 and not bounds.counts and open_files() == 0)
        assert len(receive_all(connection)) < SIZE
    # The common server waits long enough.
    assert len(live.send(download, then_close=False)) > SIZE


def test_slow_bodies_of_strangers_block_no_other_caller(live: Live) -> None:
    # An instance proves its identity by the body: no token exists before.
    head = f"PUT {V1}/instances/i-1/identity HTTP/1.1\r\n{live.host}Content-Length: 100\r\n\r\n"
    known = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: 2\r\n\r\n"
    with serving(live.cluster, ConnectionBounds(strangers_max=3)) as limited:
        answering = limited.limits.answering
        with ExitStack() as opened:
            honest = opened.enter_context(limited.connect())
            honest.sendall(known.encode())
            wait_until(lambda: len(answering) == 1)
            wait_until(lambda: next(iter(answering.values())).is_known())
            strangers = []
            for count in (2, 3, 4, 4, 4):
                strangers.append(opened.enter_context(limited.connect()))
                strangers[-1].sendall(head.encode())
                # The known caller, and three strangers at most.
                wait_until(partial(is_answering, limited, count))
            # The two oldest strangers are closed, and the known caller may be slow.
            assert [receive_all(each) for each in strangers[:2]] == [b"", b""]
            assert statuses(limited.ask("GET /experiments", TOKEN)) == [200]
            honest.sendall(b"{}")
            assert honest.recv(65536).startswith(b"HTTP/1.1 422")
        wait_until(lambda: not answering)


def test_known_callers_may_idle_longer_than_strangers(live: Live) -> None:
    with (
        serving(live.cluster, ConnectionBounds(waiting_max=4)) as limited,
        ExitStack() as opened,
    ):
        # The connections of the start are closed.
        wait_until(lambda: not limited.limits.waiting)
        known = opened.enter_context(limited.connect())
        assert ask_and_stay(limited, known) == 200
        silent = [opened.enter_context(limited.connect()) for _ in range(6)]
        # Of seven idle connections, the three strangers that have been idle longest are closed.
        assert [receive_all(each) for each in silent[:3]] == [b"", b"", b""]
        assert ask_and_stay(limited, known) == 200


def ask_and_stay(live: Live, connection: socket.socket) -> int:
    """Send a request and read the whole answer; return the status. The connection stays open."""
    head = f"GET {V1}/experiments HTTP/1.1\r\n{live.host}{TOKEN}\r\n"
    connection.sendall(head.encode())
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


class WaitingTokens:
    """Tokens that a caller gets only after `may_answer` is set."""

    def __init__(self, tokens: TokenStore) -> None:
        self.may_answer = threading.Event()
        self._tokens = tokens

    def find_principal(self, digest: str) -> Principal | None:
        assert self.may_answer.wait(ANSWER_SECONDS_MAX)
        return self._tokens.find_principal(digest)


@pytest.mark.parametrize("is_body_late", [False, True])
def test_caller_that_waits_for_a_thread_is_not_a_stranger(live: Live, is_body_late: bool) -> None:
    tokens = WaitingTokens(live.cluster.services.tokens)
    services = replace(live.cluster.services, tokens=tokens)
    # More than the server reads before a handler asks for the body.
    body = json.dumps({"sha256": "0" * 64, "size": 1, "x": "y" * 150_000}).encode()
    head = f"POST {V1}/model-code HTTP/1.1\r\n{live.host}{TOKEN}Content-Length: {len(body)}\r\n\r\n"
    with (
        serving(live.cluster, ConnectionBounds(strangers_max=1), services=services) as limited,
        ExitStack() as opened,
    ):
        callers = []
        for count in (1, 2, 3):
            callers.append(opened.enter_context(limited.connect()))
            callers[-1].sendall(head.encode() + (b"" if is_body_late else body))
            wait_until(partial(is_answering, limited, count))
        tokens.may_answer.set()
        for caller in callers:
            if is_body_late:
                caller.sendall(body)
            assert caller.recv(65536).startswith(b"HTTP/1.1 422")
