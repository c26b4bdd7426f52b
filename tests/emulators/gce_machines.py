"""Machines of the simulated Compute Engine as real processes that boot from the startup script in
their metadata.

Each machine has a separate metadata server, which announces preemptions.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from provisioner.clouds.gcp.labels import from_labels
from provisioner.clouds.provider import POOL_TAG
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.gce.project import Project
from tests.emulators.google_keys import GoogleKeys
from tests.emulators.machine_network import port_of
from tests.emulators.machines import Machines

SCRIPT = "startup-script"


class GceMachines(Machines):
    """Machines of `project`. `keys` sign identity tokens, and `metadata` has the metadata of booted
    machines by name.
    """

    def __init__(
        self, project: Project, keys: GoogleKeys, folder: Path, environment: Mapping[str, str]
    ) -> None:
        super().__init__(folder, environment, project.shut_down)
        self.metadata: dict[str, MachineMetadata] = {}
        self._project = project
        self._keys = keys
        self._servers = ExitStack()
        project.on_running = self._boot
        project.on_notice = lambda machine, seconds: self.metadata[machine.name].set_preempted()
        project.on_terminated = lambda machine: self.end(machine.name)

    def end_all(self) -> None:
        """End all booted machines and their metadata servers."""
        super().end_all()
        self._servers.close()

    def describe_metadata(self, machine: Machine) -> MachineMetadata:
        """Return the metadata of a machine at the boot."""
        [account] = machine.properties["serviceAccounts"]
        return MachineMetadata(
            machine.name,
            self._keys,
            project=self._project.name,
            zone=machine.zone,
            machine_type=machine.machine_type,
            numeric_id=int(machine.id),
            account=account["email"],
            is_spot=machine.is_spot,
            attributes=dict(machine.metadata),
        )

    def _boot(self, machine: Machine) -> None:
        metadata = self.describe_metadata(machine)
        self.metadata[machine.name] = metadata
        host = self._servers.enter_context(metadata_server(metadata))
        if self.network is not None:
            self.network.forward(port_of(f"http://{host}"))
        pool = from_labels(machine.labels)[POOL_TAG]
        script = machine.metadata[SCRIPT].encode()
        self.boot(machine.name, pool, script, {"GCE_METADATA_HOST": host})
