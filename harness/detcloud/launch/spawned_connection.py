"""The connection of a program that serves a tunnel: the program's stdin and stdout.

The agent starts such programs in an allocation, one for each connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading

_READ_BYTES = 65_536


def take_connection() -> socket.socket:
    """Return the connection, and replace stdin and stdout by the null device.

    Nothing that is printed can then get between the bytes of the connection. Container engines
    pass pipes: threads copy the bytes of pipes from and to the returned socket.
    """
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if stat.S_ISSOCK(os.fstat(source).st_mode):
        os.close(sink)
        return socket.socket(fileno=source)
    connection, inner = socket.socketpair()
    threading.Thread(target=_copy_input, args=(source, inner), daemon=True).start()
    # Not a daemon: the process ends after the last byte was written.
    threading.Thread(target=_copy_output, args=(inner, sink)).start()
    return connection


def _copy_input(source: int, inner: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(source, _READ_BYTES):
            inner.sendall(data)
        inner.shutdown(socket.SHUT_WR)


def _copy_output(inner: socket.socket, sink: int) -> None:
    with contextlib.suppress(OSError):
        while data := inner.recv(_READ_BYTES):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(sink, rest) :]
    os.close(sink)
