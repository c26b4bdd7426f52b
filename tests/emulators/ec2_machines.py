"""Machines of the simulated EC2 as real processes, which boot from their user data."""

from collections.abc import Mapping
from pathlib import Path

from provisioner.clouds.provider import POOL_TAG
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.serving import Ec2Server
from tests.emulators.machines import Machines


def connect_machines(ec2: Ec2Server, folder: Path, environment: Mapping[str, str]) -> Machines:
    """Have machines of `ec2` boot from disks in `folder`, and end as it says."""
    machines = Machines(folder, environment, ec2.region.shut_down)

    def boot(machine: Machine) -> None:
        metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": ec2.metadata_url(machine.id)}
        machines.boot(machine.id, machine.tags[POOL_TAG], machine.user_data, metadata)

    ec2.region.on_running = boot
    ec2.region.on_terminated = lambda machine: machines.end(machine.id)
    return machines
