"""A real receiver of webhooks on a port of this machine."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from control_plane.webhooks.safe_addresses import AddressRule

HERE = AddressRule(("127.0.0.1",))
"""The rule that allows the receiver's address."""


@dataclass
class ReceivedRequest:
    """A request that the receiver got, whatever the answer was."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def payload(self) -> dict[str, Any]:
        """The body as JSON."""
        return dict(json.loads(self.body))


@dataclass
class Receiver:
    """The requests of a receiver, in order."""

    url: str
    requests: list[ReceivedRequest] = field(default_factory=list)

    def accepted_payloads(self) -> list[dict[str, Any]]:
        """Return the payloads of the accepted requests, in order."""
        return [request.payload for request in self.requests if request.status == 200]


@contextmanager
def run_receiver(
    answer_status: Callable[[int], int] = lambda number: 200,
    answer: bytes = b"ok",
    headers: tuple[tuple[str, str], ...] = (),
    context: ssl.SSLContext | None = None,
) -> Iterator[Receiver]:
    """Run a receiver whose answer to the request with a number from 0 has the given status.

    With `context`, the receiver uses TLS.
    """
    lock = threading.Lock()
    receiver = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                status = answer_status(len(receiver.requests))
                named = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(ReceivedRequest(self.path, named, body, status))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    if context is not None:
        receiver.url = receiver.url.replace("http:", "https:")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
