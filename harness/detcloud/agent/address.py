"""The address at which trials on other machines reach those on this one."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"


def local_address(url: str) -> str:
    """The address from which this machine reaches the cluster at `url`, the loopback if unknown.

    Nothing is sent.
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
