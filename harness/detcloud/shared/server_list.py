"""The addresses and connections of the servers of a cluster.

A server is used until it fails.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from detcloud.shared.address_list import split_addresses
from detcloud.shared.connections import Connections, open_connection, origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPConnection

MOVING_STATUSES = frozenset({502, 503, 504})
"""The statuses after which another server is used."""
CONNECT_SECONDS_MAX = 4.0
"""The longest wait for a connection if another server may answer."""


class ServerList:
    """The servers of a cluster, and the connections to each server. Threads may share a list.

    Args:
        addresses: the addresses of the servers, separated by commas. The first server is used
            first.

    Raises:
        ValueError: an address is not http or https.
    """

    def __init__(self, addresses: str) -> None:
        self._addresses = addresses
        self._servers = [Connections(url) for url in split_addresses(addresses)]
        for server in self._servers:
            origin(server.url)
        self._lock = threading.Lock()
        self._current = 0

    def __len__(self) -> int:
        """Return the number of servers."""
        return len(self._servers)

    def __reduce__(self) -> tuple[type[ServerList], tuple[str]]:
        """Return the addresses: a copy or pickle has new connections."""
        return type(self), (self._addresses,)

    @property
    def urls(self) -> list[str]:
        """The addresses of all servers."""
        return [server.url for server in self._servers]

    @property
    def url(self) -> str:
        """The address of the server in use."""
        return self._servers[self._current].url

    def find(self, url: str) -> Connections | None:
        """Return the connections to the server with the origin of `url`. None for no server."""
        wanted = origin(url)
        return next((server for server in self._servers if origin(server.url) == wanted), None)

    def leave(self, url: str) -> bool:
        """Use the next server if the server with the address `url` is in use.

        Return whether another server than `url` is in use now.
        """
        with self._lock:
            if self.url == url:
                self._current = (self._current + 1) % len(self._servers)
            return self.url != url

    def connect(self, connection: HTTPConnection, timeout_seconds: float) -> None:
        """Connect a new connection within CONNECT_SECONDS_MAX if another server may answer.

        With a single server, the first request connects. Raises OSError.
        """
        is_new = connection.sock is None
        if len(self) > 1 and is_new:
            connection.timeout = min(timeout_seconds, CONNECT_SECONDS_MAX)
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(timeout_seconds)

    def interrupt(self) -> None:
        """Cut off all busy connections."""
        for server in self._servers:
            server.interrupt()

    def have_moved(self) -> bool:
        """Whether a busy connection has a local address that this machine has lost."""
        return any(server.have_moved() for server in self._servers)

    def close(self) -> None:
        """Close all idle connections."""
        for server in self._servers:
            server.close()


@contextlib.contextmanager
def use_connection(
    url: str, timeout_seconds: float, own: Connections | None
) -> Iterator[HTTPConnection]:
    """Yield a connection for a URL, and afterwards keep a connection to an own origin as idle.

    Connections to other origins, connections that the caller closed, and all connections after an
    error in the block are closed. The connection is opened by the first request.

    Args:
        own: the connections to the server of the URL. None for another origin.
    """
    if own is None:
        with contextlib.closing(open_connection(url, timeout_seconds)) as connection:
            yield connection
        return
    connection = own.take(timeout_seconds)
    reusable = False
    try:
        yield connection
        reusable = connection.sock is not None
    finally:
        own.give_back(connection, reusable=reusable)
