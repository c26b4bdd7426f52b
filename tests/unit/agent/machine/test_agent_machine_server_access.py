"""Requests of the installer to a cluster with several servers and an object store."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from detcloud.agent.machine.server_access import ServerUnreachable, get
from tests.emulators.server import free_port


class Handler(BaseHTTPRequestHandler):
    """Answers `/code` by a redirect to `/signed`, and records the requests with a token."""

    tokens: dict[str, str | None]

    def do_GET(self) -> None:
        self.tokens[self.path] = self.headers.get("Authorization")
        if self.path == "/lab/code":
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/signed")
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/lab/health", "/signed") else 404)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.tokens = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/lab"
        server.shutdown()
        thread.join()


def test_store_without_tls_is_used_without_the_token(url: str) -> None:
    assert get(url, "/code", token="secret").content == b"/signed"
    assert Handler.tokens == {"/lab/code": "Bearer secret", "/signed": None}


def test_next_server_answers_for_a_silent_server(url: str) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    assert get(f"{silent}, {url}/", "/health").content == b"/lab/health"


def test_servers_that_are_all_silent_are_named() -> None:
    silent = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(ServerUnreachable) as caught:
        get(",".join(silent), "/health")
    assert all(f"{address} does not answer" in str(caught.value) for address in silent)


def test_refusal_of_a_server_is_not_repeated_at_the_next(url: str) -> None:
    with pytest.raises(ServerUnreachable, match="answered 404"):
        get(f"{url},http://127.0.0.1:{free_port()}", "/missing")
