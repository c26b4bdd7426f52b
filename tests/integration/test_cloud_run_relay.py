"""The relay as a service of Cloud Run: a process of the functions' program, behind TLS.

A front in this process terminates TLS, as Google's front does, and cuts connections, as Cloud Run
does after an hour.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.access.tunnel_relay import TunnelRelay
from detcloud.shared.certificates import tls_context
from detcloud.shared.tunnel.keys import SecureChannel, make_key
from detcloud.shared.tunnel.relay_link import RelayUnavailable, dial_relay
from detcloud.shared.tunnel.tickets import Side
from lambdas.gcp.adapters import GcpAdapters
from lambdas.gcp.function_names import RELAY, RELAY_SECRET
from tests.emulators.cloud_run import run_function
from tests.emulators.company_authority import create_authority
from tests.emulators.server import free_port
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.relay.tunnel_ends import (
    HOST,
    SECRET,
    EchoServer,
    Ends,
    make_ticket,
    receive_exactly,
)

SECRET_TEXT = base64.b64encode(SECRET).decode()


class Front:
    """A server that terminates TLS and passes on the bytes to a port."""

    def __init__(self, certificate: Path, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._target = port
        self._listener = socket.create_server((HOST, 0), backlog=50)
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop listening, and cut all connections."""
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                outer, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(outer,), daemon=True).start()

    def _pass_on(self, plain: socket.socket) -> None:
        self._open.add(plain)
        inner = socket.create_connection((HOST, self._target))
        with contextlib.suppress(OSError), plain, inner:
            outer = self._context.wrap_socket(plain, server_side=True)
            self._open.add(outer)
            with outer:
                while True:
                    pending = [outer] if outer.pending() else []
                    for source in pending or select.select([outer, inner], [], [])[0]:
                        content = source.recv(65_536)
                        if not content:
                            return
                        (inner if source is outer else outer).sendall(content)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("cloud-run")
    authority = create_authority(folder / "authority")
    port = free_port()
    variables = {RELAY_SECRET: SECRET_TEXT}
    with run_function(RELAY, f"http://{HOST}:{port}", folder, variables):
        made = Front(authority.sign(HOST), port)
        with pytest.MonkeyPatch.context() as patch:
            # The authority stands for the public authority of Google's certificates.
            patch.setenv("DETCLOUD_CA_FILE", str(authority.certificate))
            yield made
        made.close()


@pytest.fixture
def relay(front: Front, monkeypatch: pytest.MonkeyPatch) -> TunnelRelay:
    """The relay as the deployed API reads it from its environment."""
    monkeypatch.setenv("DETCLOUD_RELAY_URL", f"https://{HOST}:{front.port}")
    monkeypatch.setenv(RELAY_SECRET, SECRET_TEXT)
    found = GcpAdapters().relay
    assert found is not None
    assert (found.pin, found.secret) == ("", SECRET)
    return found


def test_api_of_a_stack_without_a_relay_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETCLOUD_RELAY_URL", raising=False)
    assert GcpAdapters().relay is None


def test_session_survives_the_cut_of_an_hour(front: Front, relay: TunnelRelay) -> None:
    echo = EchoServer()
    try:
        with Ends(lambda: relay.url, echo.port) as ends, ends.connect() as program:
            program.sendall(b"first")
            assert receive_exactly(program, 5) == b"first"
            front.cut()
            wait_until(lambda: "the connection was resumed" in ends.reports)
            program.sendall(b"second")
            assert receive_exactly(program, 6) == b"second"
    finally:
        echo.close()


def test_ticket_of_another_cluster_is_refused(relay: TunnelRelay) -> None:
    channel = SecureChannel(make_key(), make_key().certificate, is_agent=False)
    with pytest.raises(RelayUnavailable, match="403: the ticket's signature is invalid"):
        dial_relay(relay.url, relay.pin, make_ticket(Side.USER, secret=b"o" * 32), channel)


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/", 404), ("/api/v1/info", 404)])
def test_other_paths_are_not_found(relay: TunnelRelay, path: str, status: int) -> None:
    try:
        answer = urllib.request.urlopen(
            f"{relay.url}{path}", timeout=ANSWER_SECONDS_MAX, context=tls_context()
        )
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        assert answer.status == status
