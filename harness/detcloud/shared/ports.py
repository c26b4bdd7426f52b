"""Ports of this machine on which a process can listen."""

from __future__ import annotations

import errno
import socket


def is_port_free(port: int) -> bool:
    """Whether a process could listen on the port now, at every address of the machine.

    The port is opened and closed again for this. True also if the port cannot be opened for another
    reason than its use by a process, for example a missing permission. Raise OverflowError for a
    number outside 0 to 65535.
    """
    try:
        _listen(port).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def find_free_port() -> int:
    """Return a port on which no process listens now, at any address of the machine.

    Nothing is reserved, so another process may take the port later. Raise OSError if no port can be
    opened.
    """
    with _listen(0) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
