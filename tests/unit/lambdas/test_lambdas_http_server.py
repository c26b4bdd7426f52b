"""The port of an embedded cluster's server."""

import socket

import pytest

from lambdas.local.http_server import open_listener


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^port {port} cannot be had: .*without --port a free"):
            open_listener(port, "")


def test_the_former_port_is_a_wish_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with open_listener(None, f"http://127.0.0.1:{port}") as listener:
            assert listener.getsockname()[1] not in (0, port)
