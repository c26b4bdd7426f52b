"""Pins: their forms, and connections to servers with pinned certificates."""

import hashlib
import pickle
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from detcloud.client import Client
from detcloud.client.endpoint import find_endpoint, store_credentials
from detcloud.shared import pins
from detcloud.shared.certificate_check import find_untrusted_pin
from detcloud.shared.errors import DetcloudError, InvalidValue
from detcloud.shared.http import Transport, WayClosed
from detcloud.shared.pins import certificate_pin, find_pin, parse_pin, pin_server
from local_cluster.certificates import make_certificate, read_pin
from tests.emulators.server import free_port

DIGITS = "ab" * 32
OTHER = f"sha256:{DIGITS}"


class Recorder(BaseHTTPRequestHandler):
    """Answers {} to each request, and records the Authorization headers."""

    tokens: list[str | None]

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class TlsServer(HTTPServer):
    """An HTTPS server with a self-signed certificate."""

    def handle_error(self, *_: object) -> None:
        """Ignore clients that end the handshake."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}"


@pytest.fixture(autouse=True)
def no_pins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pins, "_pins", {})
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DETCLOUD_PIN", "DETCLOUD_URL", "DETCLOUD_TOKEN", "DETCLOUD_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    path.write_text(make_certificate(["127.0.0.1"], datetime.now(UTC)))
    return path


@pytest.fixture
def server(certificate: Path) -> Iterator[TlsServer]:
    Recorder.tokens = []
    server = TlsServer(("127.0.0.1", 0), Recorder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_pin_is_the_sha256_of_the_certificate() -> None:
    assert certificate_pin(b"x") == f"sha256:{hashlib.sha256(b'x').hexdigest()}"


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        DIGITS,
        f"sha256:{DIGITS.upper()}",
        f" {OTHER}\n",
        # As `openssl x509 -fingerprint -sha256` prints a digest.
        ":".join(["AB"] * 32),
    ],
)
def test_pin_has_one_standard_form(text: str) -> None:
    assert parse_pin(text) == OTHER


@pytest.mark.parametrize("text", ["", "sha256:", DIGITS[1:], f"{DIGITS}00", f"sha1:{DIGITS}", "x"])
def test_other_text_is_no_pin(text: str) -> None:
    with pytest.raises(InvalidValue, match="64 hexadecimal digits"):
        parse_pin(text)


def test_pin_needs_https() -> None:
    with pytest.raises(InvalidValue, match="https"):
        pin_server("http://lab:8470", OTHER)


def test_pin_belongs_to_host_and_port() -> None:
    pin_server("https://lab:8470", OTHER)
    assert find_pin("https://lab:8470/api/v1/objects?x=1") == OTHER
    assert find_pin("https://lab:8471") is None
    assert find_pin("https://other:8470") is None
    assert find_pin("http://lab:8470") is None


def test_pin_applies_to_each_address_of_a_list() -> None:
    pin_server("https://a:8470, https://b:8471/lab/", OTHER)
    assert find_pin("https://a:8470/api") == find_pin("https://b:8471") == OTHER
    with pytest.raises(InvalidValue, match="not http://c"):
        pin_server("https://a:8470,http://c:8470", OTHER)


def test_client_with_several_servers_uses_one_pin(
    server: TlsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = f"https://127.0.0.1:{free_port()}"
    with Client(f"{silent},{server.url}", "secret", pin=read_pin(certificate)) as client:
        assert client.http.request("GET", "/") == {}
    monkeypatch.setattr(pins, "_pins", {})
    store_credentials(f"{silent},{server.url}", "secret", read_pin(certificate))
    with Client() as client:
        assert client.http.request("GET", "/") == {}
    monkeypatch.setattr(pins, "_pins", {})
    # A single address of the stored list has the pin too.
    with Client(server.url, "secret") as client:
        assert client.http.request("GET", "/") == {}


def test_pinned_certificate_is_accepted(server: TlsServer, certificate: Path) -> None:
    pin_server(server.url, read_pin(certificate))
    assert Transport(server.url, "secret").request("GET", "/") == {}
    assert Recorder.tokens == ["Bearer secret"]


def test_other_certificate_is_refused_before_the_token_is_sent(server: TlsServer) -> None:
    pin_server(server.url, OTHER)
    with pytest.raises(WayClosed) as caught:
        Transport(server.url, "secret").request("GET", "/")
    assert OTHER in str(caught.value)
    assert "compare the digest" in str(caught.value)
    assert f"detcloud login {server.url} --pin sha256:" in str(caught.value)
    assert Recorder.tokens == []


def test_self_signed_certificate_without_pin_names_the_remedy(server: TlsServer) -> None:
    with pytest.raises(WayClosed, match=r"detcloud login .* --pin"):
        Transport(server.url, "secret").request("GET", "/")


def test_pickled_transport_keeps_the_pin(
    server: TlsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin_server(server.url, read_pin(certificate))
    pickled = pickle.dumps(Transport(server.url, None))
    # Another process has no pins.
    monkeypatch.setattr(pins, "_pins", {})
    assert pickle.loads(pickled).request("GET", "/") == {}


def test_client_has_an_argument_for_the_pin(server: TlsServer, certificate: Path) -> None:
    with Client(server.url, "secret", pin=read_pin(certificate)) as client:
        assert client.http.request("GET", "/") == {}


def test_client_uses_the_variable(
    server: TlsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_PIN", read_pin(certificate))
    with Client(server.url, "secret") as client:
        assert client.http.request("GET", "/") == {}


def test_invalid_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCLOUD_PIN", "x")
    with pytest.raises(DetcloudError, match="DETCLOUD_PIN"):
        Client("https://lab:8470", "secret")


def test_client_uses_the_stored_pin(server: TlsServer, certificate: Path) -> None:
    store_credentials(server.url, "secret", read_pin(certificate))
    endpoint = find_endpoint()
    assert endpoint is not None
    assert endpoint.pin == read_pin(certificate)
    with Client() as client:
        assert client.http.request("GET", "/") == {}


def test_stored_pin_is_of_no_other_server(certificate: Path) -> None:
    store_credentials("https://lab:8470", "secret", read_pin(certificate))
    Client("https://lab:8471", "secret")
    assert find_pin("https://lab:8471") is None


def test_check_finds_the_digest_of_a_self_signed_certificate(
    server: TlsServer, certificate: Path
) -> None:
    assert find_untrusted_pin(server.url, 10) == read_pin(certificate)
    assert Recorder.tokens == []


def test_check_accepts_a_certificate_of_a_known_authority(
    server: TlsServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The file of authorities contains the self-signed certificate itself.
    monkeypatch.setenv("DETCLOUD_CA_FILE", str(certificate))
    assert find_untrusted_pin(server.url, 10) is None
