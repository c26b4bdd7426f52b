"""An embedded server in a thread of the test's process, and raw sockets to the server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from control_plane.access.principals import Role
from control_plane.api.app import create_app
from control_plane.api.request_bounds import RequestBounds
from control_plane.services import Services
from local_cluster.connections import DEFAULT_BOUNDS, ConnectionBounds
from local_cluster.http_server import EmbeddedServer, open_listener
from tests.patience import ANSWER_SECONDS_MAX, wait_until
from tests.unit.api.cluster import TOKENS, V1, Cluster

TOKEN = f"Authorization: Bearer {TOKENS[Role.ADMIN]}\r\n"


class Live:
    """A server in a thread of this process, with an experiment."""

    def __init__(self, cluster: Cluster, bounds: ConnectionBounds = DEFAULT_BOUNDS) -> None:
        self.cluster = cluster
        self._listener = open_listener(0)
        self.port: int = self._listener.getsockname()[1]
        self.host = f"Host: 127.0.0.1:{self.port}\r\n"
        self._server = EmbeddedServer(cluster.app, lambda: None, lambda: None, bounds=bounds)
        self.limits = self._server.limits
        self._thread = threading.Thread(
            target=lambda: self._server.run(sockets=[self._listener]), daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.ask("GET /health").startswith(b"HTTP/1.1 200"))

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(ANSWER_SECONDS_MAX)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX)

    def send(self, *parts: bytes, then_close: bool = True) -> bytes:
        """Send raw bytes; return all bytes of the answer until the server closes."""
        with self.connect() as connection:
            # The server may answer and close before all bytes are sent.
            with suppress(OSError):
                for part in parts:
                    connection.sendall(part)
                if then_close:
                    connection.shutdown(socket.SHUT_WR)
            return receive_all(connection)

    def ask(self, line: str, headers: str = "", body: bytes = b"") -> bytes:
        """Send a well-formed request; return the answer."""
        method, path = line.split()
        head = f"{method} {V1}{path} HTTP/1.1\r\n{self.host}Connection: close\r\n{headers}\r\n"
        return self.send(head.encode() + body, then_close=False)

    def state(self) -> str:
        answer = self.ask("GET /experiments/1", TOKEN)
        return str(json.loads(answer.split(b"\r\n\r\n", 1)[1])["state"])


@contextmanager
def serving(
    cluster: Cluster,
    bounds: ConnectionBounds = DEFAULT_BOUNDS,
    requests: RequestBounds | None = None,
    services: Services | None = None,
) -> Iterator[Live]:
    """Run another server of the cluster with other limits during the block.

    Args:
        cluster: the cluster.
        bounds: the limits on connections.
        requests: the limits on requests. None for the default limits.
        services: the dependencies of requests. None for those of the cluster.
    """
    app = create_app(services or cluster.services, requests)
    live = Live(replace(cluster, app=app), bounds)
    live.start()
    try:
        yield live
    finally:
        live.stop()


def receive_all(connection: socket.socket) -> bytes:
    content = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(65536):
            content += block
    return content


def statuses(answers: bytes) -> list[int]:
    """Return the status of each answer on a connection."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
