"""Check whether a connection is readable, and whether the machine has lost the address."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from detcloud.shared.connections import Connections, is_readable


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


class BoundSocket(socket.socket):
    """An IPv4 socket that reports a chosen local address."""

    def __init__(self, address: str) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return self.address, 40000


@pytest.mark.parametrize(
    # RFC 5737 reserves 192.0.2.0/24 for documents, so no interface has an address of it.
    ("address", "has_moved"),
    [("127.0.0.1", False), ("192.0.2.1", True)],
)
def test_lost_local_address_is_noticed(address: str, has_moved: bool) -> None:
    connections = Connections("http://127.0.0.1:1")
    connection = connections.take(1.0)
    assert not connections.have_moved()  # The connection is not open yet.
    with BoundSocket(address) as connection.sock:
        assert connections.have_moved() is has_moved
        connections.give_back(connection, reusable=True)
        assert not connections.have_moved()  # Nobody waits for an answer.


def test_closed_connection_has_not_moved() -> None:
    connections = Connections("http://127.0.0.1:1")
    connection = connections.take(1.0)
    connection.sock = socket.socket()
    connection.sock.close()
    assert not connections.have_moved()
