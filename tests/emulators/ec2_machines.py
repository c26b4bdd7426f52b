"""Machines of the simulated EC2 as real processes, which boot from their user data."""

from collections.abc import Mapping
from pathlib import Path

from provisioner.clouds.provider import POOL_TAG
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server
from tests.emulators.machines import Machines
from tests.emulators.ministack import ACCOUNT, Ministack


def connect_machines(ec2: Ec2Server, folder: Path, environment: Mapping[str, str]) -> Machines:
    """Boot machines of `ec2` from disks in `folder`, and kill processes of terminated machines."""
    machines = Machines(folder, environment, ec2.region.shut_down)

    def boot(machine: Machine) -> None:
        metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": ec2.metadata_url(machine.id)}
        machines.boot(machine.id, machine.tags[POOL_TAG], machine.script, metadata)

    ec2.region.on_running = boot
    ec2.region.on_terminated = lambda machine: machines.end(machine.id)
    return machines


def issue_keys(aws: Ministack, region: Region) -> None:
    """Let the metadata of instances issue keys of the role, in a session named by the instance."""
    sts = aws.client("sts")

    def keys(machine: Machine) -> Mapping[str, str]:
        name = machine.data["IamInstanceProfile"]["Arn"].rpartition("/")[2]
        role = f"arn:aws:iam::{ACCOUNT}:role/{name}"
        given = sts.assume_role(RoleArn=role, RoleSessionName=machine.id)["Credentials"]
        names = ("AccessKeyId", "SecretAccessKey")
        return {name: given[name] for name in names} | {"Token": given["SessionToken"]}

    region.keys = keys
