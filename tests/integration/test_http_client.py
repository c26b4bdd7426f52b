"""The JSON client against real sockets that misbehave."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from tests.patience import ANSWER_SECONDS_MAX, wait_until

Answer = Callable[[BaseHTTPRequestHandler, bytes], None]


class Server:
    """A server with scripted answers: a function per request.

    The last function answers all later requests.
    """

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.connections_closed = 0
        outer = self

        class CountingServer(ThreadingHTTPServer):
            daemon_threads = True

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                outer.connections_closed += 1

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append((self.command, self.path, dict(self.headers), body))
                answer = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                answer(self, body)

            do_POST = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = CountingServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def other_server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def client(server: Server) -> Iterator[Transport]:
    made = Transport(
        server.url, "secret-token", timeout_seconds=2 * ANSWER_SECONDS_MAX, sleep=lambda _: None
    )
    yield made
    made.close()


def answers(status: int, content: object, **headers: str) -> Answer:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()

    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(raw)))
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def hangs_up(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    handler.close_connection = True


def test_requests_share_a_connection_and_send_the_token(server: Server, client: Transport) -> None:
    server.script = [answers(200, {"n": 1}), answers(200, b"")]
    assert client.request("POST", "/x?y=1", {"a": "é"}) == {"n": 1}
    assert client.request("GET", "/z") is None
    assert server.connections == 1
    method, path, headers, body = server.seen[0]
    assert (method, path, json.loads(body)) == ("POST", "/x?y=1", {"a": "é"})
    assert headers["Authorization"] == "Bearer secret-token"
    assert headers["Content-Type"] == "application/json"


def test_bytes_are_sent_unchanged(server: Server, client: Transport) -> None:
    server.script = [answers(200, {})]
    client.request("POST", "/", b'{"x": 1.0}')
    assert server.seen[0][3] == b'{"x": 1.0}'


def test_error_keeps_code_message_and_details(server: Server, client: Transport) -> None:
    error = {"code": "invalid", "message": "no such field", "details": [{"path": "a"}]}
    server.script = [answers(422, {"error": error}), answers(200, {"ok": True})]
    with pytest.raises(ApiError) as caught:
        client.request("GET", "/")
    assert (caught.value.status, caught.value.code) == (422, "invalid")
    assert caught.value.details == [{"path": "a"}]
    assert str(caught.value) == "no such field"
    assert client.request("GET", "/") == {"ok": True}


def test_error_page_of_a_proxy_has_a_message(server: Server, client: Transport) -> None:
    server.script = [answers(502, b"<html>")]
    with pytest.raises(ApiError, match="502"):
        client.request("GET", "/", retry=False)


def test_lost_connections_and_overload_are_retried(server: Server, client: Transport) -> None:
    server.script = [hangs_up, answers(429, {}), answers(503, {}), answers(200, {"ok": True})]
    assert client.request("GET", "/") == {"ok": True}
    assert len(server.seen) == 4


def test_request_without_retry_is_sent_once(server: Server, client: Transport) -> None:
    server.script = [hangs_up, answers(200, {})]
    with pytest.raises(Unreachable) as caught:
        client.request("POST", "/", retry=False)
    assert len(server.seen) == 1
    assert "secret-token" not in str(caught.value)


def test_client_error_is_final(server: Server, client: Transport) -> None:
    server.script = [answers(404, {})]
    with pytest.raises(ApiError):
        client.request("GET", "/")
    assert len(server.seen) == 1


def test_connection_closed_while_idle_is_replaced(server: Server, client: Transport) -> None:
    def answers_and_closes(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        answers(200, {})(handler, body)
        handler.close_connection = True

    server.script = [answers_and_closes, answers(200, {})]
    client.request("POST", "/", retry=False)
    wait_until(lambda: server.connections_closed == 1)
    client.request("POST", "/", retry=False)
    assert server.connections == 2


def test_interrupted_request_ends_at_once(server: Server, client: Transport) -> None:
    is_over, was_held_to_its_end = threading.Event(), threading.Event()

    def holds(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        client.interrupt()
        if not is_over.wait(ANSWER_SECONDS_MAX):
            was_held_to_its_end.set()
        handler.close_connection = True

    server.script = [holds]
    with pytest.raises(Unreachable):
        client.request("POST", "/", retry=False)
    is_over.set()
    assert not was_held_to_its_end.is_set()


def test_threads_share_a_transport(server: Server, client: Transport) -> None:
    def answer_with_body(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        answers(200, json.loads(body))(handler, body)

    server.script = [answer_with_body]
    wrong: list[object] = []

    def ask(thread: int) -> None:
        try:
            for turn in range(20):
                if (answer := client.request("POST", "/", [thread, turn])) != [thread, turn]:
                    wrong.append(answer)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # A thread waits for its answer, so that no more requests than threads are in flight.
    assert server.connections <= 16


def test_forked_process_opens_new_connections(server: Server, client: Transport) -> None:
    server.script = [answers(200, {})]
    client.request("GET", "/")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if client.request("GET", "/child") == {} else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    client.request("GET", "/")
    # The parent's connection continues, and the child opened a second connection.
    assert server.connections == 2


@pytest.mark.parametrize("begun", [b"", b"12"])
def test_truncated_answer_is_rejected_even_if_the_beginning_is_json(
    server: Server, client: Transport, begun: bytes
) -> None:
    def breaks(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(begun)
        handler.close_connection = True

    server.script = [breaks, answers(200, 1234)]
    assert client.request("GET", "/") == 1234
    server.script = [breaks]
    with pytest.raises(Unreachable, match="the answer was cut off"):
        client.request("GET", "/")


def test_download_starts_again_after_a_break(server: Server, client: Transport) -> None:
    def breaks(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.wfile.write(b"half ")
        handler.close_connection = True

    server.script = [breaks, answers(200, b"0123456789")]
    file = io.BytesIO()
    assert client.download("/file", file) == 10
    assert file.getvalue() == b"0123456789"


def test_error_of_a_broken_download_contains_no_signature(
    server: Server, client: Transport
) -> None:
    def breaks(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.close_connection = True

    server.script = [breaks]
    with pytest.raises(Unreachable, match=r"/file was cut off after 0 of 10 bytes") as caught:
        client.download("/file?signature=canary", io.BytesIO())
    assert "canary" not in str(caught.value)


def test_redirect_to_a_different_host_gets_no_token(
    server: Server, other_server: Server, client: Transport
) -> None:
    server.script = [answers(307, b"", Location=f"{other_server.url}/object?signature=1")]
    other_server.script = [answers(200, b"content")]
    file = io.BytesIO()
    client.download("/file", file)
    assert file.getvalue() == b"content"
    assert "Authorization" not in other_server.seen[0][2]
    assert other_server.seen[0][1] == "/object?signature=1"


def test_endless_redirects_are_refused(server: Server, client: Transport) -> None:
    server.script = [answers(302, b"", Location="/again")]
    with pytest.raises(Unreachable, match="redirected"):
        client.download("/file", io.BytesIO())


def test_upload_is_repeated_from_the_start(server: Server, client: Transport) -> None:
    server.script = [answers(503, {}), answers(200, b"")]
    file = io.BytesIO(b"skip0123456789")
    file.seek(4)
    client.upload("/file", file, 10, headers={"X-Extra": "1"})
    assert [(seen[0], seen[3]) for seen in server.seen] == [("PUT", b"0123456789")] * 2
    assert server.seen[0][2]["X-Extra"] == "1"


def test_silent_server_is_reported_and_abandoned(server: Server) -> None:
    released = threading.Event()

    def freezes(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        released.wait()
        handler.close_connection = True

    server.script = [freezes]
    silences: list[str] = []
    client = Transport(
        server.url, None, timeout_seconds=0.4, attempts_seconds_max=0.2, silence_seconds=0.1
    )
    client.on_silence = silences.append
    try:
        # The first attempt takes longer than the limit for all attempts, so no second attempt
        # follows.
        with pytest.raises(Unreachable, match="could not be reached: timed out"):
            client.request("GET", "/api/v1/experiments")
    finally:
        released.set()
        client.close()
    assert silences == [server.url]


def test_error_names_an_address_without_a_server() -> None:
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9 could not be reached"):
        Transport("http://127.0.0.1:9", None).request("GET", "/", retry=False)


@pytest.mark.parametrize("url", ["localhost:80", "ftp://host", "", "http://"])
def test_rejects_addresses_that_are_not_http_urls(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Transport(url, None)


def test_pause_between_attempts_grows_to_fifteen_seconds() -> None:
    # 0.2 * 2^(n-1): at most 0.2 after the first failure, 15 from the eighth on (0.2 * 128 = 25.6).
    assert all(0 <= backoff_seconds(1) <= 0.2 for _ in range(50))
    assert max(backoff_seconds(8) for _ in range(500)) > 12
    assert all(backoff_seconds(100) <= 15 for _ in range(50))
