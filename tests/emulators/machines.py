"""Machines of a simulated cloud as real processes that boot from the launch's script."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.emulators.booted_disks import Disks
from tests.emulators.machine_network import MachineNetwork, port_of
from tests.emulators.server import missing


class Machines:
    """Machines with disks in `folder`.

    Each boot gets the variables of `environment`. `switch_off` informs the cloud of a machine that
    powered itself off. The cloud's hooks may call `boot` and `end` while holding the cloud's lock,
    since neither waits for a thread that needs the lock.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], switch_off: Callable[[str], None]
    ) -> None:
        self._disks = Disks(folder, environment)
        self._switch_off = switch_off
        self._boots: dict[str, threading.Thread] = {}
        self._ends: list[threading.Thread] = []
        self._networks = ExitStack()
        self.network: MachineNetwork | None = None
        """The network of the machines that boot now. None for the network of the tests."""
        # Commands that fail on the next boot, by pool.
        self.failing_commands: dict[str, str] = {}

    def boot(self, name: str, pool: str, script: bytes, environment: Mapping[str, str]) -> None:
        """Begin to run the script of a machine."""
        failing, network = self.failing_commands.pop(pool, ""), self.network

        def run() -> None:
            given = {**environment, "FAILING_COMMAND": failing}
            entered = []
            if network is not None:
                network.add(name)
                network.drop_connections(name)
                entered = network.command_on(name, [])
            if not self._disks.boot(name, script, given, entered):
                self._switch_off(name)

        self._boots[name] = threading.Thread(target=run, daemon=True)
        self._boots[name].start()

    @contextmanager
    def closed_network(self, urls: Iterable[str]) -> Iterator[MachineNetwork]:
        """Boot machines on a network whose firewalls drop all connections to machines.

        The machines reach `urls`, whose host is the loopback of the tests. The network is removed
        by `end_all`, because machines outlive the block. Skip the test if this system makes no
        networks with firewalls.
        """
        network = MachineNetwork(self._networks)
        if not network.has_firewalls:
            missing("iptables", "this machine makes no networks with a firewall")
        for url in urls:
            network.forward(port_of(url))
        self.network = network
        try:
            yield network
        finally:
            self.network = None

    def end(self, name: str) -> None:
        """Begin to end everything on a machine, which may be booting still."""
        if name in self._boots:
            thread = threading.Thread(target=self._end, args=(name,), daemon=True)
            self._ends.append(thread)
            thread.start()

    def end_all(self) -> None:
        """End every machine that was ever booted. Nobody may hold the cloud's lock."""
        for name in list(self._boots):
            self._end(name)
        for thread in self._ends:
            thread.join()
        self._networks.close()

    def _end(self, name: str) -> None:
        while self._boots[name].is_alive():
            self._disks.kill(name)
            self._boots[name].join(0.2)
        self._disks.kill(name)

    def disk(self, name: str) -> Path:
        """The machine's disk."""
        return self._disks.disk(name)

    def log(self, name: str) -> str:
        """Return the log of the machine's boot and agent."""
        return self._disks.log(name)

    def all_logs(self) -> str:
        """Return the logs of all booted machines."""
        return "\n".join(map(self.log, self._boots))
