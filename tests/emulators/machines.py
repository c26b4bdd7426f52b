"""Machines of a simulated cloud as real processes that boot from the launch's script."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.emulators.booted_disks import Disks


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
        # Commands that fail on the next boot, by pool.
        self.failing_commands: dict[str, str] = {}

    def boot(self, name: str, pool: str, script: bytes, environment: Mapping[str, str]) -> None:
        """Begin to run the script of a machine."""
        failing = self.failing_commands.pop(pool, "")

        def run() -> None:
            given = {**environment, "FAILING_COMMAND": failing}
            if not self._disks.boot(name, script, given):
                self._switch_off(name)

        self._boots[name] = threading.Thread(target=run, daemon=True)
        self._boots[name].start()

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
