"""Requests through a real proxy: plain requests, and tunnels to a server with a certificate."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from detcloud import Client, DetcloudError
from detcloud.shared.http import Transport, Unreachable
from tests.patience import ANSWER_SECONDS_MAX


class Answers(BaseHTTPRequestHandler):
    """A cluster that answers each request with the request's headers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = b'{"token": "%s"}' % (self.headers.get("Authorization") or "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """A proxy that connects every host name to `target`, a port of this machine."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        self.target = target
        self.seen: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), ProxyRequests)


class ProxyRequests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_CONNECT(self) -> None:
        self._note()
        with socket.create_connection(("127.0.0.1", self.server.target)) as far:
            self.send_response(200)
            self.end_headers()
            threading.Thread(target=copy_bytes, args=(far, self.connection), daemon=True).start()
            copy_bytes(self.connection, far)
        self.close_connection = True

    def do_GET(self) -> None:
        self._note()
        # The target's answer does not depend on the path.
        content = b'{"plain": true}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _note(self) -> None:
        self.server.seen.append((self.requestline, self.headers.get("Proxy-Authorization")))

    def log_message(self, *_: object) -> None:
        pass


def copy_bytes(source: socket.socket, target: socket.socket) -> None:
    try:
        while block := source.recv(65_536):
            target.sendall(block)
    except OSError:
        pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the port of a server with a certificate for cluster.test, which this process trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=cluster.test"]
    words += ["-addext", "subjectAltName=DNS:cluster.test"]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    yield from serve(server)


@pytest.fixture
def proxy(cluster: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy(cluster)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, f"http://ada:pw@127.0.0.1:{made.server_address[1]}")
    monkeypatch.delenv("NO_PROXY")
    for _ in serve(made):
        yield made


def serve(server: ThreadingHTTPServer) -> Iterator[int]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


def ask(url: str) -> Any:
    client = Transport(url, "secret", timeout_seconds=ANSWER_SECONDS_MAX)
    try:
        return [client.request("GET", "/x", retry=False) for _ in range(2)]
    finally:
        client.close()


def test_tunnel_hides_requests_from_the_proxy(proxy: Proxy) -> None:
    assert ask("https://cluster.test") == [{"token": "Bearer secret"}] * 2
    # One tunnel for both requests; base64 of "ada:pw".
    [(line, authorization)] = proxy.seen
    assert line.startswith("CONNECT cluster.test:443 HTTP/1.")
    assert authorization == "Basic YWRhOnB3"


def test_plain_request_through_a_proxy_contains_the_whole_address(proxy: Proxy) -> None:
    assert ask("http://cluster.test:8080") == [{"plain": True}] * 2
    line = "GET http://cluster.test:8080/x HTTP/1.1"
    assert proxy.seen == [(line, "Basic YWRhOnB3")] * 2


def test_excepted_hosts_and_this_machine_bypass_the_proxy(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", ".test")
    with pytest.raises(Unreachable, match=r"^http://cluster\.test could not be reached: "):
        ask("http://cluster.test")
    with pytest.raises(Unreachable):
        ask("http://127.0.0.1:9")
    assert proxy.seen == []


def test_unreachable_proxy_is_named_without_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://ada:secret@127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"through the proxy http://127\.0\.0\.1:9: ") as error:
        ask("https://cluster.test")
    assert "secret" not in str(error.value)


def test_unusable_proxy_is_an_error_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(DetcloudError, match="expected http://HOST:PORT"):
        Client("https://cluster.test", "token")
