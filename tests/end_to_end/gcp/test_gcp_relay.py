"""Tunnels, shells and notebooks on a cluster on Google Cloud.

The relay is a process of the functions' program, without Cloud Run's front for TLS. The machines
are in network namespaces, and their firewalls drop all connections to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.emulators.machine_network import MachineNetwork
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tunnel_steps import OpenTunnel, echo, start_echo, use_shell_and_notebook

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment


@pytest.mark.nightly
def test_machines_are_reached_through_a_relay_that_restarts(
    deployment: GcpDeployment, closed_network: MachineNetwork, person: Laptop, tmp_path: Path
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    command, port = start_echo(person, context)
    with OpenTunnel(person, command, f"0:{port}") as tunnel, tunnel.connect() as program:
        assert echo(program, b"first\n") == b"first\n"
        # As a new revision of the service.
        deployment.functions.stop("relay")
        deployment.functions.start("relay")
        assert echo(program, b"second\n") == b"second\n"
    person.run("command", "kill", command)
    use_shell_and_notebook(person, tmp_path)
    log = (deployment.folder / "relay.log").read_text()
    assert "Traceback" not in log, log
