"""Both ends of a tunnel in threads of the test, over a relay on real sockets."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.tunnel_ends import LocalPorts
from detcloud.shared.tunnel.frames import SESSION_BYTES
from detcloud.shared.tunnel.keys import SecureChannel, TunnelKey, make_key
from detcloud.shared.tunnel.relay_link import RelayLink, dial_relay
from detcloud.shared.tunnel.session import TunnelSession
from detcloud.shared.tunnel.tickets import LIFETIME_MS, Side, Ticket, make_binding
from detcloud.shared.tunnel.tunnel_end import TrialPorts, TunnelEnd
from tests.patience import ANSWER_SECONDS_MAX

SECRET = b"s" * 32
TUNNEL = "tunnel-1"
HOST = "127.0.0.1"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_ticket(
    side: Side,
    *,
    tunnel: str = TUNNEL,
    binding: str = "",
    age_ms: int = 0,
    secret: bytes = SECRET,
) -> str:
    """Return a new ticket. `age_ms` is the time since its issue."""
    binding = binding or make_binding("ann", "3.1", [80])
    expires_ms = now_ms() + LIFETIME_MS - age_ms
    return Ticket(tunnel, side, binding, expires_ms, secrets.token_urlsafe(8)).encode(secret)


@dataclass
class Keys:
    user: TunnelKey = field(default_factory=make_key)
    agent: TunnelKey = field(default_factory=make_key)


class Ends:
    """A user's end that listens on a port, and an agent's end, each in a thread."""

    def __init__(
        self,
        relay_url: Callable[[], str],
        remote_port: int | None,
        tunnel: str = TUNNEL,
        *,
        pin: str = "",
        ports: TrialPorts | None = None,
        listener: type[socket.socket] = socket.socket,
        idle_seconds: float = 0.0,
    ) -> None:
        self.pin = pin
        self.keys = Keys()
        self.agent_key = self.keys.agent
        """The key with which the agent's end dials."""
        self.dials: list[Side] = []
        self.relay_url = relay_url
        self.tunnel = tunnel
        opened = socket.create_server((HOST, 0), backlog=2_000)
        self.listener = listener(fileno=opened.detach())
        self.reports: list[str] = []
        self.reasons: dict[str, str] = {}
        session = TunnelSession(os.urandom(SESSION_BYTES))
        listeners = [] if remote_port is None else [(self.listener, remote_port)]
        self.user = TunnelEnd(
            session,
            self.dial_user,
            listeners=listeners,
            report=self.reports.append,
            idle_seconds=idle_seconds,
        )
        self.agent = TunnelEnd(TunnelSession(None), self.dial_agent, ports=ports or LocalPorts())
        self.threads = [
            threading.Thread(target=self._run, args=(name, end), daemon=True)
            for name, end in (("user", self.user), ("agent", self.agent))
        ]

    def dial_user(self) -> RelayLink:
        self.dials.append(Side.USER)
        channel = SecureChannel(self.keys.user, self.keys.agent.certificate, is_agent=False)
        ticket = make_ticket(Side.USER, tunnel=self.tunnel)
        return dial_relay(self.relay_url(), self.pin, ticket, channel)

    def dial_agent(self) -> RelayLink:
        self.dials.append(Side.AGENT)
        channel = SecureChannel(self.agent_key, self.keys.user.certificate, is_agent=True)
        ticket = make_ticket(Side.AGENT, tunnel=self.tunnel)
        return dial_relay(self.relay_url(), self.pin, ticket, channel)

    def _run(self, name: str, end: TunnelEnd) -> None:
        self.reasons[name] = end.run()

    def __enter__(self) -> Ends:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.user.stop("the test ends")
        self.agent.stop("the test ends")
        for thread in self.threads:
            thread.join(ANSWER_SECONDS_MAX)
            assert not thread.is_alive()
        self.listener.close()

    def connect(self) -> socket.socket:
        """Return a new connection of a program to the tunnel."""
        connection = socket.create_connection(self.listener.getsockname())
        connection.settimeout(ANSWER_SECONDS_MAX)
        return connection


class EchoServer:
    """A program that returns each received byte, and ends its bytes when the client does."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0), backlog=2_000)
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self.listener.close()


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes, or fewer at the end."""
    parts, size = [], 0
    while size < count and (part := connection.recv(min(65_536, count - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)
