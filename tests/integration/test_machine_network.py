"""The network of machines of the tests: forwarded ports, and a firewall against connections."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.emulators.machine_network import MachineNetwork
from tests.emulators.server import missing
from tests.patience import ANSWER_SECONDS_MAX

pytestmark = pytest.mark.end_to_end

# Prints whether a connection is accepted within a second.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()
    print("accepted")
except OSError as error:
    print(type(error).__name__)
"""
LISTEN = """
import socket
listener = socket.create_server(("0.0.0.0", 7000))
print("listens", flush=True)
while True:
    listener.accept()[0].close()
"""


@pytest.fixture
def network() -> Iterator[MachineNetwork]:
    with ExitStack() as cleanup:
        made = MachineNetwork(cleanup)
        if not made.has_firewalls:
            missing("iptables", "this machine makes no networks with a firewall")
        for name in ("open", "closed"):
            made.add(name)
        made.drop_connections("closed")
        yield made


def connect(network: MachineNetwork, begin: str, host: str, port: int) -> str:
    """Connect from a machine, and return the result of CONNECT."""
    command = network.command_on(begin, [sys.executable, "-c", CONNECT, host, str(port)])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_closed_machine_drops_connections_and_connects_itself(network: MachineNetwork) -> None:
    with ExitStack() as stack:
        for name in ("open", "closed"):
            command = network.command_on(name, [sys.executable, "-c", LISTEN])
            listener = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(listener.kill)
            assert listener.stdout is not None
            assert listener.stdout.readline() == "listens\n"
        opened, closed = network.address_of("open"), network.address_of("closed")
        assert connect(network, "switch", opened, 7000) == "accepted"
        assert connect(network, "closed", opened, 7000) == "accepted"
        assert connect(network, "closed", "127.0.0.1", 7000) == "accepted"
        for neighbour in ("open", "switch"):
            assert connect(network, neighbour, closed, 7000) == "TimeoutError"


def test_forwarded_port_is_reached_from_earlier_and_later_machines(network: MachineNetwork) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_SECONDS_MAX)
        port = server.getsockname()[1]
        assert connect(network, "closed", "127.0.0.1", port) == "ConnectionRefusedError"
        network.forward(port)
        network.forward(port)
        network.add("later")
        for name in ("open", "closed", "later"):
            assert connect(network, name, "127.0.0.1", port) == "accepted"
            server.accept()[0].close()


def test_network_is_removed_at_the_end() -> None:
    with ExitStack() as cleanup:
        network = MachineNetwork(cleanup)
        if not network.is_namespaced:
            missing("iptables", "this machine makes no networks")
        network.add("only")
        network.forward(9)
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert network._full_name("only") not in found.stdout
