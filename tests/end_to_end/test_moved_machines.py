"""Machines that change their address or lose the network come back as themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.machine_network import ForwardedPort, MachineNetwork, port_of
from tests.emulators.server import missing
from tests.end_to_end.laptop import Laptop, start_cluster
from tests.integration.embedded_cluster import TRAIN
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

CONFIG = """
name: long
entrypoint: python3 train.py 0.1
hyperparameters: {x: 1.0}
searcher: {name: single, metric: loss, max_length: {batches: 700}}
resources: {slots_per_trial: 1, agent_label: lab}
max_restarts: 0
"""
GATEWAY = "10.96.0.1"
# The server only accepts its own names, so that a name of the loopback leads to the gateway.
WITH_HOSTS = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


class Machine:
    """An agent in a network namespace. The cluster is reachable at GATEWAY."""

    def __init__(self, network: MachineNetwork, laptop: Laptop, folder: Path) -> None:
        self.network = network
        self.work = folder / "work"
        self.log = folder / "agent.log"
        self.url = f"http://localhost:{port_of(laptop.record()['url'])}"
        self._hosts = folder / "hosts"
        self._hosts.write_text(f"{GATEWAY} localhost\n")
        self._environment = laptop.environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, token: Path) -> None:
        """Start the agent with the file of a join token."""
        words = [sys.executable, "-P", "-m", "detcloud.agent", "--url", self.url]
        words += ["--name", "gpu-1", "--pool", "default", "--label", "lab", "--cpu-slots", "1"]
        words += ["--work-dir", str(self.work), "--token-file", str(token)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.network.command_on("gpu-1", [*self._with_hosts(), *words]),
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def _with_hosts(self) -> list[str]:
        """Return the beginning of a command with the machine's own /etc/hosts."""
        return ["unshare", "--mount", "sh", "-c", WITH_HOSTS, "sh", str(self._hosts)]

    def kill(self) -> None:
        """Kill the agent. Trials continue."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Stop the agent and the trials."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def ip(self, *words: str) -> None:
        command = self.network.command_on("gpu-1", ["ip", *words])
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with start_cluster(tmp_path, 1) as cluster:
        yield cluster


@pytest.fixture
def machine(laptop: Laptop, tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as cleanup:
        network = MachineNetwork(cleanup)
        if not network.is_namespaced:
            missing("iproute2", "this machine makes no network namespaces")
        network.add("gpu-1")
        port = port_of(laptop.record()["url"])
        cleanup.callback(ForwardedPort(network.place_of("switch"), port, GATEWAY).close)
        folder = tmp_path / "machine"
        folder.mkdir()
        made = Machine(network, laptop, folder)
        cleanup.callback(made.stop)
        token = folder / "join.token"
        token.write_text(laptop.run("token", "create", "--join", "default", "--once").stdout)
        made.start(token)
        wait_until(lambda: agent(laptop).get("state") == "ALIVE", what="the agent")
        # The token is good once, and is never needed again.
        token.unlink()
        yield made


def agent(laptop: Laptop) -> dict[str, Any]:
    with laptop.cluster() as client:
        return next((found.data for found in client.agents() if found.id == "gpu-1"), {})


def submit(laptop: Laptop, folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text(TRAIN)
    (folder / "long.yaml").write_text(CONFIG)
    laptop.run("create", folder / "long.yaml", folder / "code")
    wait_until(lambda: "starts at" in laptop.log(1), what="the start of the trial")


def test_moved_machine_enrols_with_its_new_address(laptop: Laptop, machine: Machine) -> None:
    before = agent(laptop)["enrolled_ms"]
    # Without the first address, Linux also deletes the second address of the network.
    machine.ip("address", "flush", "dev", "eth0")
    machine.ip("address", "add", "10.96.0.77/24", "dev", "eth0")
    wait_until(lambda: agent(laptop)["enrolled_ms"] > before, 60, "a new session")
    assert "this machine has another address" in machine.log.read_text()
    assert agent(laptop)["state"] == "ALIVE"


def test_machine_without_a_network_for_long_comes_back(
    laptop: Laptop, machine: Machine, tmp_path: Path
) -> None:
    submit(laptop, tmp_path)
    machine.ip("link", "set", "eth0", "down")
    wait_until(lambda: agent(laptop)["state"] == "LOST", 120, "the loss of the agent")
    machine.ip("link", "set", "eth0", "up")
    wait_until(lambda: agent(laptop)["state"] == "ALIVE", 60, "the return of the agent")
    assert "stopping all lost trials" in machine.log.read_text()
    # The trial starts again on the same machine.
    wait_until(lambda: laptop.log(1).count("starts at") == 2, 60, "the new run")


def test_machine_that_was_off_enrols_without_a_join_token(
    laptop: Laptop, machine: Machine, tmp_path: Path
) -> None:
    machine.kill()
    wait_until(lambda: agent(laptop)["state"] == "LOST", 120, "the loss of the agent")
    machine.start(tmp_path / "nothing")
    wait_until(lambda: agent(laptop)["state"] == "ALIVE", 60, "the return of the agent")
    assert (machine.work / "credential.json").stat().st_mode & 0o777 == 0o600
