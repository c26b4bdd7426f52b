"""Where an embedded cluster listens."""

import socket

import pytest

from lambdas.serving import listening


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^port {port} cannot be had: .*without --port a free"):
            listening(port, "")


def test_the_former_port_is_a_wish_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with listening(None, f"http://127.0.0.1:{port}") as listener:
            assert listener.getsockname()[1] not in (0, port)
