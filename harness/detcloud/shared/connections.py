"""Reusable connections to an origin, for any number of threads and for forked processes."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from detcloud.shared.certificates import tls_context
from detcloud.shared.pins import find_pin
from detcloud.shared.proxies import find_proxy

if TYPE_CHECKING:
    from http.client import HTTPConnection
    from socket import socket
    from typing import Any


class Connections:
    """The idle and busy connections to the origin of `url`. Threads may share the object.

    A connection serves a single request at a time. A forked process opens new connections.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._busy: set[HTTPConnection] = set()
        self._process = os.getpid()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._url

    def take(self, timeout_seconds: float) -> HTTPConnection:
        """Return an idle connection that the server has not closed, or a new connection.

        A new connection is opened by the first request. The connection counts as busy until the
        caller passes it to `give_back`. Idle connections that the server has closed are dropped.
        `timeout_seconds` limits each wait for the server. Raise ValueError for an invalid address,
        or if the environment names an invalid proxy or file of authorities.
        """
        self._forget_parents()
        while (connection := self._pop_idle()) is not None:
            if connection.sock is not None and not is_readable(connection.sock.fileno()):
                connection.sock.settimeout(timeout_seconds)
                break
            connection.close()
        else:
            connection = open_connection(self._url, timeout_seconds)
        with self._lock:
            self._busy.add(connection)
        return connection

    def give_back(self, connection: HTTPConnection, *, reusable: bool) -> None:
        """Keep a reusable connection as idle, or close a connection that is not reusable.

        The caller decides: a connection is reusable if the last answer was read completely. Nothing
        is checked, and the number of idle connections has no limit.
        """
        with self._lock:
            self._busy.discard(connection)
            if reusable:
                self._idle.append(connection)
        if not reusable:
            connection.close()

    def interrupt(self) -> None:
        """Cut off all busy connections. Threads that use the connections get an error.

        The threads must still pass the connections to `give_back`. Idle connections, and busy
        connections that are not open yet, stay as they are. New requests are possible.
        """
        import socket

        for sock in self._busy_sockets():
            # An SSL socket's own shutdown() would remove state that the reader still uses.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def have_moved(self) -> bool:
        """Whether a busy connection has a local address that no interface of this machine has.

        An answer to a lost address cannot arrive, and the operating system reports no error.
        """
        return not all(_has_local_address(sock) for sock in self._busy_sockets())

    def close(self) -> None:
        """Close all idle connections. Busy connections stay open. New requests are possible."""
        while (connection := self._pop_idle()) is not None:
            connection.close()

    def _busy_sockets(self) -> list[socket]:
        """Return the sockets of the busy connections that are open."""
        with self._lock:
            sockets = [connection.sock for connection in self._busy]
        return [sock for sock in sockets if sock is not None]

    def _pop_idle(self) -> HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _forget_parents(self) -> None:
        """In a forked process, drop the parent's connections. In other processes, do nothing.

        Copies of idle connections are closed, which does not disturb the parent. Busy connections
        are forgotten.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            # A thread of the parent may have had the lock when the process was forked.
            self._lock = threading.Lock()
            self._busy.clear()
            self.close()


def open_connection(
    url: str, timeout_seconds: float, *, pin: str | None = None, **options: Any
) -> HTTPConnection:
    """Return an HTTP connection for requests to `url`, through a proxy if the environment names it.

    The connection is opened by the first request. An https connection uses a tunnel through the
    proxy, and also trusts the authorities of `certificates.py`. If `pin` or `pins.py` has a pin of
    the server, the connection accepts only the pinned certificate. For http, the caller must send
    the target and headers of `request_target`. `options` are more arguments of `http.client`. Raise
    ValueError for an invalid address, or if the environment names an invalid proxy or file of
    authorities.
    """
    from http.client import HTTPConnection, HTTPSConnection

    scheme, host, port = origin(url)
    proxy = find_proxy(url)
    place = (host, port) if proxy is None else (proxy.host, proxy.port)
    connection: HTTPConnection
    if scheme == "https":
        pin = pin or find_pin(url)
        if pin is None:
            connection = HTTPSConnection(
                *place, timeout=timeout_seconds, context=tls_context(), **options
            )
        else:
            # Imported here for the same reason as `http.client`, which the module subclasses.
            from detcloud.shared.pinned_connections import PinnedConnection

            connection = PinnedConnection(*place, pin=pin, timeout=timeout_seconds, **options)
        if proxy is not None:
            connection.set_tunnel(host, port, dict(proxy.headers))
        return connection
    return HTTPConnection(*place, timeout=timeout_seconds, **options)


def request_target(url: str) -> tuple[str, dict[str, str]]:
    """Return the target in the request line for `url`, and the headers for a proxy.

    For a plain HTTP request through a proxy, the target is the whole address without the address's
    user and password. The headers contain the login of the proxy, if any. For other requests, the
    target is path and query, without headers for a proxy. The path is at least `/`, and a fragment
    is dropped. Raise ValueError if the environment names an invalid proxy.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = find_proxy(url) if parts.scheme == "http" else None
    if proxy is None:
        return path, {}
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", dict(proxy.headers)


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address. The port defaults to the scheme's port.

    Scheme and host are in lower case. Raise ValueError if the address is not http or https, has no
    host or an invalid port.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an address; expected http://HOST:PORT or https://HOST")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    """Return whether a descriptor becomes readable within `seconds`. 0 checks without waiting.

    Nothing is read. A connection also becomes readable when it fails or the server closes it.
    """
    import select

    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], seconds)[0])
    # Unlike `select`, `poll` takes descriptors from 1024 on.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _has_local_address(sock: socket) -> bool:
    """Return whether an interface of this machine has the local address of a connection.

    True if the question has no answer, for example because another thread closes the connection.
    No packet is sent.
    """
    import socket as sockets

    try:
        host, _, *scope = sock.getsockname()
        with sockets.socket(sock.family, sockets.SOCK_DGRAM) as probe:
            probe.bind((host, 0, *scope))
    except (OSError, ValueError) as error:
        return getattr(error, "errno", None) != errno.EADDRNOTAVAIL
    return True
