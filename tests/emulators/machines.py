"""Machines of the simulated EC2 as real processes: each boots from its own user data."""

import threading
from collections.abc import Mapping
from pathlib import Path

from provisioner.clouds.provider import POOL_TAG
from tests.emulators.booted_disks import Disks
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.serving import Ec2Server


class Machines:
    """Boots the machines of `ec2`, whose disks are in `folder`; `environment` is added to each."""

    def __init__(self, ec2: Ec2Server, folder: Path, environment: Mapping[str, str]) -> None:
        self._ec2 = ec2
        self._disks = Disks(folder, environment)
        self._booting: dict[str, threading.Thread] = {}
        # By its pool, a command that fails on the next machine that boots.
        self.failing_commands: dict[str, str] = {}

    def boot(self, machine: Machine) -> None:
        """Run the machine's user data, as Region.on_running has it."""
        thread = threading.Thread(target=self._boot, args=(machine,), daemon=True)
        self._booting[machine.id] = thread
        thread.start()

    def end(self, machine: Machine) -> None:
        """End everything on the machine, as Region.on_terminated has it."""
        if machine.id in self._booting:
            self._end(machine.id)

    def end_all(self) -> None:
        """End every machine that was ever booted."""
        for name in list(self._booting):
            self._end(name)

    def _end(self, name: str) -> None:
        """End a machine, which may be booting still."""
        thread = self._booting[name]
        if thread is not threading.current_thread():
            while thread.is_alive():
                self._disks.kill(name)
                thread.join(0.2)
        self._disks.kill(name)

    def disk(self, name: str) -> Path:
        """The machine's disk."""
        return self._disks.disk(name)

    def log(self, name: str) -> str:
        """Return what the machine's boot and its agent wrote."""
        return self._disks.log(name)

    def _boot(self, machine: Machine) -> None:
        environment = {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._ec2.metadata_url(machine.id),
            "FAILING_COMMAND": self.failing_commands.pop(machine.tags[POOL_TAG], ""),
        }
        if not self._disks.boot(machine.id, machine.user_data, environment):
            self._ec2.region.shut_down(machine.id)
