"""Agents in addition to the server's own agent, each as on a separate machine.

As root with `ip`, each agent has a network namespace with an address on a shared bridge. Otherwise
each has an address of the loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from detcloud.shared.processes import PROC, Process, read_process
from tests.end_to_end.laptop import Laptop
from tests.patience import PROCESS_SECONDS_MAX

PIPE_BYTES = 64 * 1024
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_networks = itertools.count(1)


class Agents:
    """Agents of a cluster by name, each with a separate work directory and address.

    Without a `network`, all agents use this machine's loopback.
    """

    def __init__(self, laptop: Laptop, network: Network | None = None) -> None:
        self.laptop = laptop
        self._network = network
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, slots: int) -> None:
        """Start an agent; also restarts a killed agent."""
        home = self.laptop.home
        url = self.laptop.record()["url"]
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--name", name]
        command += ["--url", url, "--pool", "default", "--slots", str(slots)]
        command += ["--token-file", str(home / "agent.token")]
        command += ["--work-dir", str(self.folder(name)), "--stop-seconds", "2"]
        if self._network is not None:
            command = self._network.command_on(name, url, command)
        with (home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.laptop.environment, cwd=home, stderr=log
            )

    def refuses_connections(self, name: str) -> bool:
        """Let the machine of an agent drop all connections from elsewhere.

        Call this before `start`. Return False if this machine makes no networks or has no iptables.
        """
        return self._network is not None and self._network.close_machine(
            name, self.laptop.record()["url"]
        )

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


class Network:
    """A network in which every agent has a machine: an address, and a route to the server."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._hosts: dict[str, int] = {}
        self._name = f"detcloud-{os.getpid()}-{next(_networks)}"
        self.is_namespaced = os.getuid() == 0 and self._make_namespace("switch")
        if self.is_namespaced:
            self._ip("link", "add", "bridge", "type", "bridge", place="switch")
            self._ip("link", "set", "bridge", "up", place="switch")

    def address_of(self, name: str) -> str:
        """Return the address of an agent's machine."""
        host = self._hosts[name]
        return f"10.96.0.{host}" if self.is_namespaced else f"127.0.0.{host}"

    def close_machine(self, name: str, url: str) -> bool:
        """Let the machine drop all connections that the machine does not begin itself.

        Return False without a namespace or iptables.
        """
        if not self.is_namespaced or shutil.which("iptables") is None:
            return False
        self._find_machine(name, url)
        enter = ["ip", "netns", "exec", self._full_name(name), "iptables"]
        answers = ("INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
        for rule in (
            ("-A", "INPUT", "-i", "lo", "-j", "ACCEPT"),
            ("-A", *answers),
            ("-P", "INPUT", "DROP"),
        ):
            subprocess.run([*enter, *rule], check=True, capture_output=True)
        return True

    def command_on(self, name: str, url: str, command: list[str]) -> list[str]:
        """Return the command of an agent, wrapped to run on the agent's machine."""
        self._find_machine(name, url)
        entered = ["nsenter", f"--net={_NAMESPACES / self._full_name(name)}"]
        address = ["--address", self.address_of(name)]
        return [*(entered * self.is_namespaced), *command, *address]

    def _find_machine(self, name: str, url: str) -> None:
        """Make the agent's machine, unless it exists."""
        if name not in self._hosts:
            self._hosts[name] = len(self._hosts) + 2
            if self.is_namespaced:
                self._add_machine(name, url)

    def _add_machine(self, name: str, url: str) -> None:
        assert self._make_namespace(name)
        port, switch, machine = f"to-{name}", self._full_name("switch"), self._full_name(name)
        ends = ("name", port, "netns", switch, "type", "veth", "peer", "name", "eth0")
        self._ip("link", "add", *ends, "netns", machine)
        self._ip("link", "set", port, "master", "bridge", "up", place="switch")
        self._ip("address", "add", f"{self.address_of(name)}/24", "dev", "eth0", place=name)
        for device in ("eth0", "lo"):
            self._ip("link", "set", device, "up", place=name)
        server = int(url.rpartition(":")[2])
        self._cleanup.callback(Relay(_NAMESPACES / machine, server).close)

    def _make_namespace(self, place: str) -> bool:
        name = self._full_name(place)
        try:
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        except OSError:
            return False
        if done.returncode == 0:
            self._cleanup.callback(self._ip, "netns", "delete", name)
        return done.returncode == 0

    def _full_name(self, place: str) -> str:
        return f"{self._name}-{place}"

    def _ip(self, *words: str, place: str = "") -> None:
        within = ["-n", self._full_name(place)] if place else []
        subprocess.run(["ip", *within, *words], check=True, capture_output=True)


class Relay:
    """A port of a namespace's loopback that forwards to the server's port outside."""

    def __init__(self, namespace: Path, port: int) -> None:
        self._port = port
        self._listener: socket.socket | None = None
        opener = threading.Thread(target=self._listen, args=(namespace,))
        opener.start()
        opener.join()
        assert self._listener is not None, f"{namespace} could not be entered"
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Stop listening; open connections end with their processes."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self, namespace: Path) -> None:
        """Listen within the namespace; this thread alone enters the namespace and never returns."""
        with namespace.open() as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), _CLONE_NEWNET) == 0:
                self._listener = socket.create_server(("127.0.0.1", self._port))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, _ = listener.accept()
                threading.Thread(target=self._pass_on, args=(inner,), daemon=True).start()

    def _pass_on(self, inner: socket.socket) -> None:
        place = ("127.0.0.1", self._port)
        with contextlib.suppress(OSError), inner, socket.create_connection(place) as outer:
            ends = {inner: outer, outer: inner}
            while True:
                for source in select.select(list(ends), [], [])[0]:
                    content = source.recv(PIPE_BYTES)
                    if not content:
                        return
                    ends[source].sendall(content)


@contextlib.contextmanager
def agents_of(laptop: Laptop) -> Iterator[Agents]:
    """Yield agents of the cluster on separate machines; end all agents with the block."""
    with ExitStack() as cleanup:
        agents = Agents(laptop, Network(cleanup))
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
