"""The life of a machine of one's own: added, upgraded and removed through a real sshd."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.laptop import Laptop, start_cluster
from tests.integration.embedded_cluster import TRAIN
from tests.integration.ssh_machine import SshMachine
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.end_to_end

CONFIG = """
name: long
entrypoint: python3 train.py 0.05
hyperparameters: {x: 1.0}
searcher: {name: single, metric: loss, max_length: {batches: 400}}
resources: {slots_per_trial: 1, agent_label: lab}
max_restarts: 0
checkpoint_storage: {type: shared_fs, host_path: FOLDER}
"""
# The longest time from the command to listed slots, on a quiet machine.
ADD_SECONDS_MAX = 20.0
WORK = "/var/lib/detcloud-agent"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with start_cluster(tmp_path_factory.mktemp("laptop"), 1) as cluster:
        yield cluster


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SshMachine]:
    made = SshMachine(tmp_path / "machine")
    try:
        yield made
    finally:
        made.close()


def add(laptop: Laptop, machine: SshMachine, *words: str, code: int = 0) -> dict[str, Any]:
    """Run `detcloud agent add` for a machine with two CPU slots, and return the result."""
    options = [*machine.options, "--agent-option=--cpu-slots=2", *words]
    [result] = laptop.json("agent", "add", machine.url, *options, code=code)
    return dict(result)


def agents(laptop: Laptop) -> dict[str, dict[str, Any]]:
    with laptop.cluster() as client:
        return {agent.id: agent.data for agent in client.agents()}


def remove(laptop: Laptop, machine: SshMachine, name: str) -> None:
    laptop.run("agent", "remove", name, "--ssh", machine.url, *machine.options)


def test_machine_is_added_upgraded_and_removed(
    laptop: Laptop, machine: SshMachine, tmp_path: Path, shared_folder: Path
) -> None:
    before = machine.listing()
    began = time.monotonic()
    result = add(laptop, machine, "--name", "gpu-1", "--label", "lab")
    assert (result["state"], result["agent"], len(result["slots"])) == ("added", "gpu-1", 2)
    assert time.monotonic() - began < ADD_SECONDS_MAX * PATIENCE
    assert agents(laptop)["gpu-1"]["state"] == "ALIVE"
    # Trials and agents are no root, and secrets are readable by their owner only.
    owner = machine.run(f"stat -c '%U %a' {WORK} {WORK}/credential.json").split("\n")
    assert owner[:2] == ["detcloud 700", "detcloud 600"]
    assert machine.run(f"ls {WORK}/join.token 2>&1 || true").endswith("No such file or directory\n")
    assert all(token["revoked"] for token in laptop.json("token", "list", "--show-inactive"))

    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    (tmp_path / "long.yaml").write_text(CONFIG.replace("FOLDER", str(shared_folder)))
    laptop.run("create", tmp_path / "long.yaml", code)
    wait_until(lambda: "starts at" in laptop.log(1), what="the start of the trial")

    again = add(laptop, machine)
    assert (again["state"], again["agent"]) == ("added", "gpu-1")

    # Another digest in the version's mark: the agent counts as behind.
    make_older(machine)
    machine.run(
        "kill -HUP $(python3 -c 'import json; print(json.load(open("
        f'"{WORK}/keeper.lock"))["pid"])\')'
    )
    wait_until(lambda: agents(laptop)["gpu-1"]["behind"], what="an agent that is behind")
    listed = laptop.run("agent", "list").stdout
    assert "(behind)" in listed
    laptop.run("agent", "upgrade", "gpu-1")
    assert not agents(laptop)["gpu-1"]["behind"]
    laptop.await_completion(1)
    # The trial was never interrupted.
    assert laptop.log(1).count("starts at") == 1

    remove(laptop, machine, "gpu-1")
    assert "gpu-1" not in agents(laptop)
    after = machine.listing()
    assert {name: after.get(name) for name in before} == before
    assert set(after) == set(before)
    assert not machine.run("ps -eo args | grep '[/]opt/detcloud' || true")


def make_older(machine: SshMachine) -> None:
    """Let the present version have another digest, as a version of an older cluster."""
    [mark] = machine.opt.glob("detcloud/versions/0*/detcloud.json")
    fields = json.loads(mark.read_text())
    older = mark.parent.with_name("0.0.9-000000000000")
    mark.parent.rename(older)
    (older / "detcloud.json").write_text(json.dumps({**fields, "sha256": "0" * 64}))
    link = older.with_name("current")
    link.unlink()
    link.symlink_to(older.name)


def test_pasted_line_installs_for_a_user_without_root(laptop: Laptop, tmp_path: Path) -> None:
    printed = laptop.json(
        "agent",
        "join-line",
        "--name",
        "pasted",
        "--user-install",
        "--agent-option=--cpu-slots=1",
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    command = ["sh", "-c", printed["line"]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    try:
        assert "agent    pasted" in done.stdout, done.stdout
        wait_until(lambda: agents(laptop).get("pasted", {}).get("state") == "ALIVE")
        # The token of the line was used.
        repeated = subprocess.run(
            ["sh", "-c", printed["line"].replace("pasted", "another")],
            env={**environment, "HOME": str(tmp_path / "second")},
            capture_output=True,
            text=True,
        )
        assert repeated.returncode == 1
        assert "used by agent pasted" in repeated.stdout
    finally:
        for folder in (home, tmp_path / "second"):
            remove_for_user(folder, environment)
    assert not (home / ".local/share/detcloud-agent").exists()
    laptop.run("agent", "remove", "pasted")
    assert "pasted" not in agents(laptop)


def remove_for_user(home: Path, environment: dict[str, str]) -> None:
    """Remove the installation in a home, if it exists."""
    python = home / ".local/share/detcloud-agent/versions/current/bin/python"
    if python.exists():
        command = [str(python), "-P", "-m", "detcloud.agent.machine", "remove"]
        variables = {**environment, "HOME": str(home)}
        options = '{"user_install": true}'
        subprocess.run(command, input=options, text=True, env=variables, check=True)


def test_unreachable_machines_are_reported(laptop: Laptop, machine: SshMachine) -> None:
    words = ["agent", "add", machine.url, "ssh://127.0.0.1:1", *machine.options]
    good, bad = laptop.json(*words, "--agent-option=--cpu-slots=1", code=1)
    assert (good["state"], bad["state"]) == ("added", "failed")
    assert "Connection refused" in bad["error"]
    assert "check the port" in bad["error"]
    remove(laptop, machine, good["agent"])


def test_machine_that_cannot_reach_the_server_is_not_changed(
    laptop: Laptop, machine: SshMachine
) -> None:
    before = machine.listing()
    result = add(laptop, machine, "--server", "http://127.0.0.1:1", code=1)
    assert "a check failed, and nothing was changed" in result["error"]
    assert any("name another with --server" in step["text"] for step in result["steps"])
    assert machine.listing() == before
