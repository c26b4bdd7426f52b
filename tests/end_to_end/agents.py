"""Agents in addition to the server's own agent, each as on a separate machine.

As root with `ip`, each agent has a network namespace with an address on a shared bridge. Otherwise
each has an address of the loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from detcloud.shared.processes import PROC, Process, read_process
from tests.emulators.machine_network import MachineNetwork
from tests.end_to_end.laptop import Laptop
from tests.patience import PROCESS_SECONDS_MAX


class Agents:
    """Agents of a cluster by name, each with a separate work directory and address.

    Without a `network`, all agents use this machine's loopback.
    """

    def __init__(self, laptop: Laptop, network: MachineNetwork | None = None) -> None:
        self.laptop = laptop
        self._network = network
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, slots: int, *options: str) -> None:
        """Start an agent with further options; also restarts a killed agent."""
        home = self.laptop.home
        url = self.laptop.record()["url"]
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--name", name]
        command += ["--url", url, "--pool", "default", "--slots", str(slots)]
        command += ["--token-file", str(home / "agent.token")]
        command += ["--work-dir", str(self.folder(name)), "--stop-seconds", "2", *options]
        if self._network is not None:
            self._network.add(name)
            self._network.forward(int(url.rpartition(":")[2]))
            command += ["--address", self._network.address_of(name)]
            command = self._network.command_on(name, command)
        with (home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.laptop.environment, cwd=home, stderr=log
            )

    def refuses_connections(self, name: str) -> bool:
        """Let the machine of an agent drop all connections from elsewhere.

        Call this before `start`. Return False if this machine makes no networks or has no iptables.
        """
        if self._network is None or not self._network.has_firewalls:
            return False
        self._network.add(name)
        self._network.drop_connections(name)
        return True

    def run_on(self, name: str, command: list[str]) -> bool:
        """Run a command on the machine of an agent, before or after `start`.

        Return False if this machine makes no networks. Raises CalledProcessError.
        """
        if self._network is None or not self._network.is_namespaced:
            return False
        self._network.add(name)
        command = self._network.command_on(name, command)
        subprocess.run(command, check=True, capture_output=True)
        return True

    def folder(self, name: str) -> Path:
        """Return the agent's work directory."""
        return self.laptop.home / name

    def kill(self, name: str) -> None:
        """Kill the agent alone; child processes continue."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def strike(self, name: str) -> None:
        """Kill agent, supervisors and trials at once, as a power cut does."""
        hit = [self._processes[name].pid]
        for path in self.folder(name).glob("allocations/*/agent/process.json"):
            fields = json.loads(path.read_text())
            hit += [fields["supervisor"], -fields["pid"]]
        for pid in hit:
            with contextlib.suppress(ProcessLookupError):
                if pid > 0:
                    os.kill(pid, signal.SIGKILL)
                elif read_process(-pid) is not None:
                    os.killpg(-pid, signal.SIGKILL)
        self._processes.pop(name).wait()

    def alive(self) -> set[str]:
        """Return the agents that the cluster considers alive."""
        with self.laptop.cluster() as cluster:
            return {agent.id for agent in cluster.agents() if agent.state == "ALIVE"}

    def workers(self) -> dict[int, Process]:
        """Return the worker processes of the running trial by rank.

        A worker runs the user's code. A trial on a single slot has no launcher; its own process is
        the worker.
        """
        found = {}
        for entry in PROC.iterdir():
            rank = _rank_of(entry, self.laptop.home) if entry.name.isdigit() else None
            process = read_process(int(entry.name)) if rank is not None else None
            if process is not None and rank is not None:
                found[rank] = process
        if not found:
            for path in self.laptop.home.glob("*/allocations/*/agent/process.json"):
                leader = read_process(json.loads(path.read_text())["pid"])
                found = {0: leader} if leader is not None else found
        return found

    def end(self) -> None:
        """End all agents and wait until the processes have exited."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(PROCESS_SECONDS_MAX)


@contextlib.contextmanager
def agents_of(laptop: Laptop) -> Iterator[Agents]:
    """Yield agents of the cluster on separate machines; end all agents with the block."""
    with ExitStack() as cleanup:
        agents = Agents(laptop, MachineNetwork(cleanup))
        cleanup.callback(agents.end)
        yield agents


def _rank_of(entry: Path, home: Path) -> int | None:
    """Return the rank of the worker in this process; None if no worker runs there."""
    with contextlib.suppress(OSError, ValueError):
        command = (entry / "cmdline").read_bytes()
        variables = dict(_variables(entry))
        if str(home) in variables.get("DETCLOUD_TRIAL_DIR", "") and b"wrap_rank" not in command:
            is_script = b"train.py" in command and b"detcloud.launch" not in command
            is_worker = is_script or b"detcloud.launch.trial_worker" in command
            return int(variables["RANK"]) if is_worker else None
    return None


def _variables(entry: Path) -> Iterator[tuple[str, str]]:
    for variable in (entry / "environ").read_bytes().decode(errors="replace").split("\0"):
        name, _, value = variable.partition("=")
        yield name, value
