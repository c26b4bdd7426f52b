"""The check of machines before trials on several real agents, each with its own network."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_installed
from tests.end_to_end.agents import Agents, agents_of
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

TRAIN = """\
import torch
from torch import distributed
from detcloud import core

torch.set_num_threads(1)
distributed.init_process_group("gloo")
with core.init() as context:
    for operation in context.searcher.operations():
        value = torch.ones(1)
        distributed.all_reduce(value)
        context.train.report_validation_metrics(operation.length, {"loss": value.item()})
        operation.complete(value.item())
"""
# The check's channel uses ports from 12,288 to 20,479. All other ports of the machine are closed.
CHANNEL_PORTS = "12288:20479"


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    with agents_of(laptop) as made:
        yield made


def start_cluster(laptop: Laptop, agents: Agents) -> None:
    """Start a cluster whose own agent takes no work, because it is on no network of machines."""
    laptop.run("up", "--slots", 1)
    wait_until(lambda: agents.alive() == {"local"})
    laptop.run("agent", "disable", "local")


def submit(laptop: Laptop, folder: Path, slots: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    config = {
        "name": "gang",
        "entrypoint": "python3 -m detcloud.launch.torch_distributed python3 train.py",
        "resources": {"slots_per_trial": slots},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "max_restarts": 0,
    }
    path = folder.with_suffix(".yaml")
    path.write_text(json.dumps(config))
    laptop.run("create", path, folder)


def trial(laptop: Laptop, number: int) -> dict[str, Any]:
    with laptop.cluster() as cluster:
        return cluster.trial(number).data


def exclusions(laptop: Laptop) -> dict[str, list[dict[str, Any]]]:
    with laptop.cluster() as cluster:
        found = {agent.id: agent.data["exclusions"] for agent in cluster.agents()}
    return {name: listed for name, listed in found.items() if listed}


def configure(laptop: Laptop, folder: Path, **fields: object) -> None:
    path = folder / "cluster.yaml"
    shared = {"resource_manager": {"gang_check": fields}}
    path.write_text(json.dumps({**shared, "resource_pools": [{"pool_name": "default"}]}))
    laptop.run("cluster", "apply", path)


def test_machines_are_checked_once_in_an_hour(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    require_installed("torch")
    start_cluster(laptop, agents)
    agents.start("a", 1)
    agents.start("b", 1)
    wait_until(lambda: {"a", "b"} <= agents.alive())
    submit(laptop, tmp_path / "model", 2)
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    assert "[detcloud] check of the machines: 2 machines passed: " in laptop.log(1)

    submit(laptop, tmp_path / "model", 2)
    assert laptop.run("wait", 2).stdout == "experiment 2 finished\n"
    assert "the machines are not checked: the machines have passed within the hour" in laptop.log(2)
    assert "2 machines passed the check of a gang" not in laptop.run("history", 1).stdout
    assert "passed the check with " in laptop.run("history", 1).stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("meets", "fault"),
    [(True, ""), (False, " (c): no connection to node 0 within 8 s")],
    ids=["unreachable-ports", "unreachable-machine"],
)
def test_trial_moves_away_from_a_machine_that_fails_the_check(
    laptop: Laptop, agents: Agents, tmp_path: Path, *, meets: bool, fault: str
) -> None:
    require_installed("torch")
    start_cluster(laptop, agents)
    configure(laptop, tmp_path, timeout="8s")
    for name in ("a", "b", "c"):
        if name == "c" and not close_ports(agents, name, meets=meets):
            pytest.skip("this machine makes no networks or has no iptables")
        agents.start(name, 1)
    wait_until(lambda: {"a", "b", "c"} <= agents.alive())
    submit(laptop, tmp_path / "model", 3)

    wait_until(lambda: exclusions(laptop), 150)
    [(name, [exclusion])] = exclusions(laptop).items()
    assert name == "c"
    assert exclusion["reason"].startswith("trial 1: the check of the machines failed: node ")
    assert fault in exclusion["reason"]
    # The default length of an exclusion is an hour, less the time for two messages.
    assert 3_590_000 < exclusion["until_ms"] - exclusion["since_ms"] <= 3_600_000
    assert "excluded" in laptop.run("agent", "list").stdout
    assert exclusion["reason"] in laptop.run("agent", "describe", "c").stdout

    agents.start("d", 1)
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    data = trial(laptop, 1)
    assert (data["state"], data["restarts"], data["metric"]) == ("COMPLETED", 0, 3.0)
    assert "[detcloud] check of the machines: 3 machines passed: " in laptop.log(1)
    assert laptop.run("agent", "enable", "c").stdout == "agent c is enabled\n"
    assert exclusions(laptop) == {}


@pytest.mark.nightly
def test_trial_moves_away_from_a_slow_machine(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    require_installed("torch")
    start_cluster(laptop, agents)
    configure(laptop, tmp_path, min_bandwidth=50)
    for name in ("a", "b", "c"):
        if name == "c" and not slow_down(agents, name, "80mbit"):
            pytest.skip("this machine makes no networks or has no tc")
        agents.start(name, 1)
    wait_until(lambda: {"a", "b", "c"} <= agents.alive())
    submit(laptop, tmp_path / "model", 3)

    wait_until(lambda: exclusions(laptop), 150)
    assert list(exclusions(laptop)) == ["c"]
    assert "MB/s, less than the limit of 50 MB/s" in laptop.log(1)


def close_ports(agents: Agents, name: str, *, meets: bool) -> bool:
    """Drop all packets of an agent's machine. Return whether it can.

    With `meets`, the ports of the check's channel stay open.
    """
    if not agents.refuses_connections(name):
        return False
    for chain, device in (("OUTPUT", "-o"), ("INPUT", "-i")):
        for side in ("--sport", "--dport"):
            allowed = ["-p", "tcp", side, CHANNEL_PORTS, "-j", "ACCEPT"]
            if meets:
                agents.run_on(name, ["iptables", "-A", chain, *allowed])
        agents.run_on(name, ["iptables", "-A", chain, device, "eth0", "-j", "DROP"])
    # `drop_connections` accepts packets of known connections before these rules.
    agents.run_on(name, ["iptables", "-D", "INPUT", "2"])
    return True


def slow_down(agents: Agents, name: str, rate: str) -> bool:
    """Limit the rate at which an agent's machine sends. Return whether it can."""
    shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate]
    try:
        return agents.run_on(name, [*shape, "burst", "256kb", "latency", "400ms"])
    except (OSError, subprocess.CalledProcessError):
        return False
