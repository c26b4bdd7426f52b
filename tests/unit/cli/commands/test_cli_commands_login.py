"""`detcloud login`: codes, pins, and certificates that no known authority has signed."""

import io
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detcloud.shared import pins
from local_cluster.certificates import make_certificate, read_pin
from tests.emulators.server import free_port
from tests.unit.cli.conftest import Detcloud

CODE, TOKEN = "dct_code", "dct_token"
OTHER = f"sha256:{'0' * 64}"


class Api(BaseHTTPRequestHandler):
    """Exchanges CODE for TOKEN, and answers `whoami` for TOKEN."""

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        self._answer(200 if is_known else 401, {"user": "ada", "role": "admin"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_right = self.path.endswith("/sign-in-codes/token") and body["code"] == CODE
        self._answer(201 if is_right else 401, {"id": 1, "token": TOKEN})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    pin: str

    def handle_error(self, *_: object) -> None:
        """Ignore clients that end the handshake."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(pins, "_pins", {})
    monkeypatch.delenv("DETCLOUD_PIN", raising=False)
    certificate = tmp_path / "server.pem"
    certificate.write_text(make_certificate(["127.0.0.1"], datetime.now(UTC)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(("127.0.0.1", 0), Api)
    server.pin = read_pin(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def stored_login(home: Path) -> dict[str, str] | None:
    path = home / ".detcloud/credentials.json"
    fields: dict[str, str] | None = json.loads(path.read_text()) if path.exists() else None
    return fields


def answer_on_terminal(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    terminal = io.StringIO(line)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)


def test_code_and_pin_are_exchanged_and_stored(
    server: Server, detcloud: Detcloud, own_home: Path
) -> None:
    done = detcloud("login", server.url, "--pin", server.pin, "--code", CODE)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"ada (admin) at {server.url}, stored in ")
    assert stored_login(own_home) == {"url": server.url, "token": TOKEN, "pin": server.pin}
    # A second login needs no pin: the stored pin is used and kept.
    pins._pins.clear()
    assert detcloud("login", TOKEN).code == 0
    assert stored_login(own_home) == {"url": server.url, "token": TOKEN, "pin": server.pin}


def test_login_at_several_servers_stores_the_list(
    server: Server, detcloud: Detcloud, own_home: Path
) -> None:
    urls = f"{server.url},https://127.0.0.1:{free_port()}"
    done = detcloud("login", urls, "--pin", server.pin, "--code", CODE)
    assert done.code == 0, done.err
    assert stored_login(own_home) == {"url": urls, "token": TOKEN, "pin": server.pin}
    pins._pins.clear()
    assert detcloud("login", TOKEN).code == 0
    assert stored_login(own_home) == {"url": urls, "token": TOKEN, "pin": server.pin}


def test_script_does_not_trust_an_unknown_certificate(
    server: Server, detcloud: Detcloud, own_home: Path
) -> None:
    done = detcloud("login", server.url, TOKEN)
    assert done.code == 1
    assert f"--pin {server.pin}" in done.err
    assert stored_login(own_home) is None


@pytest.mark.parametrize("line", ["y\n", "YES\n"])
def test_terminal_asks_for_trust(
    server: Server, detcloud: Detcloud, own_home: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    answer_on_terminal(monkeypatch, line)
    done = detcloud("login", server.url, TOKEN)
    assert done.code == 0
    assert server.pin in done.err
    assert stored_login(own_home) == {"url": server.url, "token": TOKEN, "pin": server.pin}


@pytest.mark.parametrize("line", ["n\n", "\n", ""])
def test_refused_trust_stores_nothing(
    server: Server, detcloud: Detcloud, own_home: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    answer_on_terminal(monkeypatch, line)
    assert "is not trusted" in detcloud("login", server.url, TOKEN).err
    assert stored_login(own_home) is None


def test_other_certificate_is_refused(server: Server, detcloud: Detcloud, own_home: Path) -> None:
    done = detcloud("login", server.url, TOKEN, "--pin", OTHER)
    assert (done.code, stored_login(own_home)) == (4, None)
    assert f"not the pinned {OTHER}" in done.err


def test_wrong_code_stores_nothing(server: Server, detcloud: Detcloud, own_home: Path) -> None:
    done = detcloud("login", server.url, "--pin", server.pin, "--code", "dct_wrong")
    assert (done.code, stored_login(own_home)) == (3, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((TOKEN, "--code", CODE), "either a token or --code"),
        (("https://b",), "an address and a token at most"),
        (("a", "b"), "an address and a token at most"),
        ((TOKEN, "--pin", "x"), "is not a pin"),
    ],
)
def test_contradictory_words_are_refused(
    server: Server, detcloud: Detcloud, words: tuple[str, ...], message: str
) -> None:
    first = () if "--pin" in words else ("--pin", server.pin)
    done = detcloud("login", server.url, *first, *words)
    assert (done.code, message in done.err) == (1, True)


def test_pin_needs_https(detcloud: Detcloud, server: Server) -> None:
    done = detcloud("login", "http://127.0.0.1:1", TOKEN, "--pin", server.pin)
    assert "a pin needs an address with https" in done.err
