"""Tunnels, shells and notebooks on a deployed cluster: the API starts the relay as a task.

The emulator's ECS accepts the request and runs nothing. A process of this machine therefore
executes what the task's definition describes (`tests/emulators/fargate.py`). The machines are in
network namespaces, and their firewalls drop all connections to them.
"""

from pathlib import Path

import pytest

from control_plane.access.relay_record import KEY
from tests.emulators.deployment import Deployment
from tests.emulators.fargate import fargate
from tests.emulators.machine_network import MachineNetwork
from tests.end_to_end.aws.cluster import allow_on_cluster
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tunnel_steps import (
    OpenTunnel,
    echo,
    start_echo,
    use_shell_and_notebook,
)
from tests.patience import wait_until


@pytest.mark.nightly
def test_tunnel_reaches_a_command_through_a_relay_that_the_api_starts(
    deployment: Deployment, closed_network: MachineNetwork, person: Laptop, tmp_path: Path
) -> None:
    assert tuple(KEY) not in deployment.rows()
    context = tmp_path / "context"
    context.mkdir()
    command, port = start_echo(person, context)
    cluster = deployment.function_name("relay")
    allow_on_cluster(deployment, cluster)
    with fargate(deployment.aws, cluster, tmp_path / "tasks", closed_network) as tasks:
        with OpenTunnel(person, command, f"0:{port}") as tunnel, tunnel.connect() as program:
            assert echo(program, b"first\n") == b"first\n", tasks.log()
            # ECS ends a task by SIGTERM. The task writes its end, and the session continues over
            # the next task.
            [first] = tasks.living()
            first.terminate()
            assert echo(program, b"second\n") == b"second\n", tasks.log()
            wait_until(lambda: first.poll() is not None)
            assert first.returncode == 0
            # The ended task may still have carried the second line.
            assert echo(program, b"third\n") == b"third\n", tasks.log()
            assert len(tasks.processes) == 2
        person.run("command", "kill", command)
        use_shell_and_notebook(person, tmp_path)
    log = tasks.log()
    assert "Traceback" not in log, log
    assert "the relay listens at 127.0.0.1" in log
