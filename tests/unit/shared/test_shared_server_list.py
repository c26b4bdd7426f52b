"""Tests of requests to a cluster with several servers."""

import copy
import socket
from contextlib import ExitStack

import pytest

from detcloud.shared.address_list import split_addresses
from detcloud.shared.http import ApiError, Transport, Unreachable
from detcloud.shared.server_list import ServerList
from tests.emulators.server import free_port
from tests.raw_server import RawServer, http_answer, serve_raw

OK = http_answer(b'{"a": 1}')
BUSY = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
MISSING = b"HTTP/1.1 404 Missing\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def dead_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


def client_of(*urls: str) -> Transport:
    def refuse_pause(seconds: float) -> None:
        raise AssertionError("no pause is needed")

    return Transport(",".join(urls), "secret", sleep=refuse_pause)


def test_addresses_are_split_at_commas() -> None:
    assert split_addresses("http://a:1/, http://b:2") == ["http://a:1", "http://b:2"]
    assert split_addresses("http://a") == ["http://a"]
    assert split_addresses("") == [""]


@pytest.mark.parametrize("addresses", ["", ",", "http://a,b", "http://a,ftp://b"])
def test_invalid_address_is_refused(addresses: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        ServerList(addresses)


def test_next_server_answers_without_a_pause() -> None:
    with serve_raw(OK, OK) as server:
        client = client_of(dead_url(), server.url)
        assert client.request("GET", "/x") == {"a": 1}
        assert client.base_url == server.url
        # The server that answered is used first from now on.
        assert client.request("GET", "/x") == {"a": 1}
    assert all(b"Bearer secret" in request for request in server.requests)


def test_single_attempt_leaves_the_next_call_to_the_next_server() -> None:
    with serve_raw(OK) as server:
        client = client_of(dead_url(), server.url)
        with pytest.raises(Unreachable):
            client.request("POST", "/x", {}, retry=False)
        assert client.request("POST", "/x", {}, retry=False) == {"a": 1}


def test_busy_server_is_left() -> None:
    with serve_raw(BUSY) as first, serve_raw(OK) as second:
        assert client_of(first.url, second.url).request("GET", "/x") == {"a": 1}


def test_refusal_of_a_server_is_the_answer() -> None:
    with serve_raw(MISSING) as first:
        client = client_of(first.url, dead_url())
        with pytest.raises(ApiError) as refusal:
            client.request("GET", "/x")
        assert refusal.value.status == 404
        assert client.base_url == first.url


def test_all_servers_are_tried_again_after_a_pause() -> None:
    pauses: list[float] = []
    urls = f"{dead_url()},{dead_url()}"
    client = Transport(urls, None, attempts_max=6, sleep=pauses.append)
    with pytest.raises(Unreachable):
        client.request("GET", "/x")
    # The first pause follows the second attempt.
    assert len(pauses) == 4


def test_interrupted_call_stays_at_its_server() -> None:
    client = client_of("http://127.0.0.1:1", "http://127.0.0.1:2")

    def attempt() -> None:
        client.interrupt()
        raise Unreachable("cut off")

    with pytest.raises(Unreachable):
        client._attempt(attempt, retry=False)
    assert client.base_url == "http://127.0.0.1:1"


def test_token_is_not_sent_to_other_servers() -> None:
    with ExitStack() as stack:
        own, stranger = (stack.enter_context(serve_raw(OK)) for _ in range(2))
        client = client_of(dead_url(), own.url)
        client.request("GET", f"{stranger.url}/x")
        client.request("GET", f"{own.url}/x")
        assert not _has_token(stranger)
        assert _has_token(own)


def test_silent_machine_delays_a_request_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detcloud.shared.server_list.CONNECT_SECONDS_MAX", 0.2)
    # A full backlog leaves further connections without an answer.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, serve_raw(OK) as server:
        place = full.getsockname()
        with ExitStack() as stack:
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(place)
            client = client_of(f"http://127.0.0.1:{place[1]}", server.url)
            assert client.request("GET", "/x") == {"a": 1}


def test_copy_has_all_servers() -> None:
    client = copy.copy(Transport("http://a,http://b", "secret"))
    assert client._servers.urls == ["http://a", "http://b"]


def _has_token(server: RawServer) -> bool:
    return b"Bearer secret" in b"".join(server.requests)
