"""Arguments of `detcloud tunnel`, and the ports of configurations."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from detcloud.cli.rendering.proxy_ports import proxy_ports
from detcloud.client.tunnel import PortPair, close_listeners, open_listeners
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

PORTS = [{"proxy_port": 8265, "proxy_tcp": True}, {"proxy_port": 6006}, {"proxy_port": 8265}]


@pytest.mark.parametrize(
    ("config", "ports"),
    [
        ({}, []),
        ({"environment": None}, []),
        ({"environment": {"proxy_ports": []}}, []),
        # A template may name a port again.
        ({"environment": {"proxy_ports": PORTS}}, [8265, 6006]),
    ],
)
def test_ports_of_a_configuration_are_distinct(config: dict[str, Any], ports: list[int]) -> None:
    assert proxy_ports(config) == ports


def test_configured_port_moves_if_the_number_is_taken_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DetcloudError, match=f"port {port} of this machine is not available"):
            open_listeners([PortPair(port, port)])
        listeners = open_listeners([PortPair(port, port, can_move=True)])
        try:
            [(listener, remote)] = listeners
            assert remote == port
            assert listener.getsockname()[1] not in (0, port)
        finally:
            close_listeners(listeners)


def test_experiment_without_ports_needs_a_number(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "digits"}, {})
    done = detcloud("tunnel", "--trial", "1")
    assert (done.code, done.out) == (1, "")
    assert "1 has no environment.proxy_ports, so name the ports" in done.err
    assert "`detcloud tunnel 1 8888`" in done.err


def test_description_lists_the_ports_with_the_command(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({"name": "digits", "environment": {"proxy_ports": PORTS}}, {})
    described = detcloud("describe", "1").out
    assert "8265, 6006 (open with `detcloud tunnel 1`)" in described
    fake.add_experiment({"name": "digits"}, {})
    assert "detcloud tunnel" not in detcloud("describe", "2").out
