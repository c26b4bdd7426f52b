"""The address at which trials on other machines reach the trials on this machine."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"


def local_address(url: str) -> str:
    """Return the IP address from which this machine connects to the cluster at `url`.

    Return LOOPBACK if the host cannot be resolved or reached, or if `url` is malformed. The host's
    name is resolved, but no packet is sent to the cluster.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or LOOPBACK, parts.port or 443
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK
