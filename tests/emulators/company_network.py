"""A company's network: a proxy with a login is the only way to the hosts `*.test`, which have
certificates of the company's own authority.

The proxy is proxy.py, as a process. The hosts are servers on this machine, which only the proxy
resolves. A request to such a host without the proxy therefore fails.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

from tests.conftest import require_installed
from tests.emulators.company_authority import CompanyAuthority, create_authority
from tests.emulators.server import serving

ROOT = Path(__file__).resolve().parents[2]
USER, PASSWORD = "ada", "canary-p@ss:w/rd"
LOGIN = "ada:canary-p%40ss%3Aw%2Frd"


@dataclass(frozen=True)
class CompanyNetwork:
    """A company's proxy and authority."""

    authority: CompanyAuthority
    place: str
    """The proxy, HOST:PORT."""

    @property
    def proxy(self) -> str:
        """The URL of the proxy with the login."""
        return f"http://{LOGIN}@{self.place}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that an operator sets for this network."""
        return {
            "HTTP_PROXY": self.proxy,
            "HTTPS_PROXY": self.proxy,
            "DETCLOUD_CA_FILE": str(self.authority.certificate),
        }

    @contextmanager
    def front(self, host: str, port: int) -> Iterator[str]:
        """Serve the plain server at `port` as https; yield the URL with the host's name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority.sign(host))

        class Connection(BaseRequestHandler):
            def handle(self) -> None:
                with (
                    suppress(OSError),
                    context.wrap_socket(self.request, server_side=True) as near,
                    closing(socket.create_connection(("127.0.0.1", port))) as far,
                ):
                    threading.Thread(target=_copy, args=(far, near), daemon=True).start()
                    _copy(near, far)

        class Server(ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignore a client that left."""

        with Server(("127.0.0.1", 0), Connection) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            yield f"https://{host}:{server.server_address[1]}"
            server.shutdown()


@contextmanager
def company_network(folder: Path) -> Iterator[CompanyNetwork]:
    """Run a company's network with its files in `folder`, an existing folder."""
    require_installed("proxy")
    port_file, log = folder / "port", folder / "proxy.log"
    command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0"]
    command += ["--port-file", str(port_file), "--basic-auth", f"{USER}:{PASSWORD}"]
    command += ["--num-workers", "1", "--num-acceptors", "1"]
    command += ["--plugins", "tests.emulators.company_names.CompanyNames"]

    def is_ready() -> None:
        port = int(port_file.read_text())
        socket.create_connection(("127.0.0.1", port)).close()

    with serving(command, is_ready, log, {"PYTHONPATH": str(ROOT)}):
        authority = create_authority(folder / "authority")
        yield CompanyNetwork(authority, f"127.0.0.1:{int(port_file.read_text())}")


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65_536):
            target.sendall(block)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
