"""The address at which trials on other machines reach the trials on this machine."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from detcloud.shared.address_list import split_addresses
from detcloud.shared.proxies import find_proxy

LOOPBACK = "127.0.0.1"


def local_address(url: str) -> str:
    """Return the IP address from which this machine connects to the cluster at `url`.

    Of several addresses with commas, the first counts. With a proxy, this is the address from which
    the machine connects to the proxy. Return LOOPBACK if the host cannot be resolved or reached, or
    if `url` is malformed. The host's name is resolved, but no packet is sent to it.
    """
    try:
        url = split_addresses(url)[0]
        parts, proxy = urlsplit(url), find_proxy(url)
        # The names of hosts behind a proxy often cannot be resolved.
        host, port = parts.hostname or LOOPBACK, parts.port or 443
        if proxy is not None:
            host, port = proxy.host, proxy.port
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return LOOPBACK
