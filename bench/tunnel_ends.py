"""An end of a tunnel in a process of its own, `python -m bench.tunnel_ends`.

The process reads its keys and places from stdin as JSON. The user's end prints its local port.
"""

import base64
import json
import os
import socket
import sys
from typing import Any

from control_plane.access.tunnel_relay import TunnelRelay
from detcloud.shared.tunnel.frames import SESSION_BYTES
from detcloud.shared.tunnel.keys import SecureChannel, TunnelKey
from detcloud.shared.tunnel.multiplexer import ResetReason
from detcloud.shared.tunnel.relay_link import RelayLink, dial_relay
from detcloud.shared.tunnel.session import TunnelSession
from detcloud.shared.tunnel.tickets import Side
from detcloud.shared.tunnel.tunnel_end import TunnelEnd
from lambdas.clock import now_ms

HOST = "127.0.0.1"


class LocalPorts:
    """All ports of this machine. The check of the port's owner is not measured."""

    def connect(self, port: int) -> socket.socket | ResetReason:
        """Return a socket that connects to a port without blocking."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((HOST, port))
        return connection

    def check(self, port: int) -> ResetReason | None:
        """Refuse no port."""
        return None

    def serve(self, service: str) -> socket.socket | ResetReason:
        """Refuse all services."""
        return ResetReason.UNKNOWN_SERVICE


def main() -> None:
    """Carry the streams of an end until the peer closes the tunnel."""
    place = json.loads(sys.stdin.readline())
    side = Side(place["side"])

    def dial() -> RelayLink:
        key = TunnelKey(place["certificate"], place["secret_pem"])
        channel = SecureChannel(key, place["peer_certificate"], is_agent=side is Side.AGENT)
        return dial_relay(place["relay"], "", _ticket(place, side), channel)

    if side is Side.AGENT:
        TunnelEnd(TunnelSession(None), dial, ports=LocalPorts()).run()
        return
    listeners = [(socket.create_server((HOST, 0), backlog=2_000), port) for port in place["ports"]]
    print(json.dumps([listener.getsockname()[1] for listener, _ in listeners]), flush=True)
    TunnelEnd(TunnelSession(os.urandom(SESSION_BYTES)), dial, listeners=listeners).run()


def _ticket(place: dict[str, Any], side: Side) -> str:
    relay = TunnelRelay(place["relay"], "", base64.b64decode(place["secret"]))
    return relay.issue_ticket(side, "bench-tunnel", "bench", "1.1", place["ports"], now_ms())


if __name__ == "__main__":
    main()
