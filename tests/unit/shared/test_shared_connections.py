"""Check whether a connection is readable."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from detcloud.shared.connections import is_readable


@contextmanager
def high_descriptor(connection: socket.socket) -> Iterator[int]:
    """Yield a copy of a socket's descriptor with the number 1500, too large for `select`."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    descriptor = os.dup2(connection.fileno(), 1500)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_readable_after_data_and_after_close() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            assert not is_readable(ours.fileno())
            theirs.sendall(b"x")
            assert is_readable(ours.fileno(), 5)
            ours.recv(1)
        assert is_readable(ours.fileno(), 5)


def test_descriptors_beyond_1023_are_checked() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, high_descriptor(ours) as descriptor:
        assert not is_readable(descriptor)
        theirs.sendall(b"x")
        assert is_readable(descriptor, 5)
