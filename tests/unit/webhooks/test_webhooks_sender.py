"""Requests of webhooks over real connections: answers, bounds, time limits, no rebinding."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.webhooks.safe_addresses import AddressRule
from control_plane.webhooks.sender import (
    ANSWER_BYTES_MAX,
    BODY_BYTES_MAX,
    HttpSender,
    Outcome,
    Request,
)
from tests.emulators.company_authority import create_authority
from tests.unit.webhooks.receiver import HERE, run_receiver


def send(url: str, sender: HttpSender | None = None, body: bytes = b"{}") -> Outcome:
    request = Request(url, body, {"Content-Type": "application/json"})
    return (sender or HttpSender(lambda: HERE)).send(request)


@contextmanager
def raw_server(answer: list[bytes], pause_seconds: float = 0.0) -> Iterator[str]:
    """Run a server that sends the parts of an answer with pauses, and yield the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            for part in answer:
                if ended.wait(pause_seconds):
                    return
                try:
                    connection.sendall(part)
                except OSError:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        ended.set()
        thread.join()
        listener.close()


def test_request_arrives_with_host_and_body() -> None:
    with run_receiver() as receiver:
        assert send(f"{receiver.url}?a=b", body=b'{"x":1}') == Outcome(True, 200)
    (request,) = receiver.requests
    assert (request.path, request.body) == ("/hook?a=b", b'{"x":1}')
    assert request.headers["host"] == receiver.url.split("/")[2]
    assert request.headers["content-type"] == "application/json"


def test_accepted_event_is_delivered_although_the_answer_breaks_off() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    with raw_server([head + b"x"]) as url:
        assert send(url) == Outcome(True, 200)


@pytest.mark.parametrize("status", [201, 204, 299])
def test_other_successes_are_deliveries(status: int) -> None:
    with run_receiver(lambda number: status, b"") as receiver:
        assert send(receiver.url).is_delivered


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_refusal_has_status_and_answer(status: int) -> None:
    with run_receiver(lambda number: status, b"no\x1b[31m room") as receiver:
        outcome = send(receiver.url)
    assert (outcome.is_delivered, outcome.status, outcome.is_final) == (False, status, False)
    assert outcome.error == f"the receiver answered with status {status}: no[31m room"


def test_status_410_is_final() -> None:
    with run_receiver(lambda number: 410) as receiver:
        assert send(receiver.url).is_final


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_is_not_followed(status: int) -> None:
    with run_receiver() as other:
        location = (("Location", other.url),)
        with run_receiver(lambda number: status, b"", location) as receiver:
            outcome = send(receiver.url)
    assert (outcome.is_delivered, other.requests) == (False, [])
    assert "redirects are not followed" in outcome.error


def test_private_host_gets_no_connection() -> None:
    with run_receiver() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        sender = HttpSender(AddressRule, lambda host, port: ["127.0.0.1"])
        outcome = send(f"https://example.com:{port}/", sender)
    assert (outcome.is_delivered, receiver.requests) == (False, [])
    assert "example.com has a loopback address" in outcome.error


def test_name_that_changes_its_address_reaches_only_the_checked_address() -> None:
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    with run_receiver() as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        rule = AddressRule(("rebound.example",))
        sender = HttpSender(lambda: rule, lambda host, port: answers.pop(0))
        assert send(f"http://rebound.example:{port}/", sender).is_delivered
    assert answers == [["127.0.0.2"]]
    assert receiver.requests[0].headers["host"] == f"rebound.example:{port}"


def test_slow_answer_ends_at_the_time_limit() -> None:
    begun = time.monotonic()
    # Each byte arrives within the time limit, and the whole answer does not.
    with raw_server([b"x"] * 1000, 0.02) as url:
        outcome = send(url, HttpSender(lambda: HERE, seconds_max=0.3))
    assert outcome.error == "no answer within 0 s"
    assert time.monotonic() - begun < 5


def test_long_answer_is_cut() -> None:
    head = b"HTTP/1.1 500 X\r\nContent-Length: 100000000\r\n\r\n"
    with raw_server([head, b"y" * (2 * ANSWER_BYTES_MAX)]) as url:
        outcome = send(url)
    assert outcome.status == 500
    assert outcome.error.endswith(": " + "y" * 200)


def test_endless_headers_are_refused() -> None:
    with raw_server([b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 50_000]) as url:
        assert not send(url).is_delivered


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1"])
def test_broken_answer_is_a_failure(answer: bytes) -> None:
    with raw_server([answer]) as url:
        assert not send(url).is_delivered


def test_chunked_answer_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    with raw_server([head]) as url:
        assert send(url) == Outcome(True, 200)


def test_closed_port_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    outcome = send(f"http://127.0.0.1:{port}/")
    assert outcome.error == "the request failed: Connection refused"


def test_server_without_encryption_is_refused() -> None:
    with run_receiver() as receiver:
        outcome = send(receiver.url.replace("http:", "https:"))
    assert outcome.error.startswith("the encryption failed")


def test_certificate_must_be_valid_for_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = create_authority(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    rule = AddressRule(("127.0.0.1", "hooks.example", "other.example"))
    sender = HttpSender(lambda: rule, lambda host, port: ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("hooks.example"))
    with run_receiver(context=context) as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        assert send(f"https://hooks.example:{port}/", sender).is_delivered
        other = send(f"https://other.example:{port}/", sender)
        monkeypatch.delenv("SSL_CERT_FILE")
        unknown = send(f"https://hooks.example:{port}/", sender)
    assert len(receiver.requests) == 1
    for outcome in (other, unknown):
        assert outcome.error == "the encryption failed: CERTIFICATE_VERIFY_FAILED"


def test_large_body_is_not_sent() -> None:
    with run_receiver() as receiver:
        outcome = send(receiver.url, body=b"x" * (BODY_BYTES_MAX + 1))
    assert "bytes" in outcome.error
    assert receiver.requests == []
