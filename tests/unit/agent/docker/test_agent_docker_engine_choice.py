"""The choice of the container engine, and the differences between engines."""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from detcloud.agent.__main__ import ConfigurationError, _check_no_other_runtime
from detcloud.agent.assignment.agent_user import MachineUser
from detcloud.agent.docker.container import ContainerRules, container_body
from detcloud.agent.docker.engine import EngineClient
from detcloud.agent.docker.engine_choice import (
    EngineFacts,
    EngineUnusable,
    engine_socket,
    read_facts,
)
from detcloud.agent.docker.runtime import DockerRuntime
from tests.unit.agent.docker.test_agent_docker_container import GPUS, assignment

PODMAN = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}]}
DOCKER = {"Version": "27.0", "Components": [{"Name": "Engine"}]}


class Engine:
    """An engine with two fixed answers."""

    def __init__(self, version: dict[str, Any], **information: Any) -> None:
        self.version, self.facts = version, information

    def read_version(self) -> dict[str, Any]:
        return self.version

    def information(self) -> dict[str, Any]:
        return self.facts


def facts_of(version: dict[str, Any], **information: Any) -> EngineFacts:
    return read_facts(cast(EngineClient, Engine(version, **information)))


def test_socket_comes_from_the_variable_of_the_runtime(tmp_path: Path) -> None:
    variables = {"DOCKER_HOST": "unix:///d.sock", "CONTAINER_HOST": "unix:///p.sock"}
    assert engine_socket("docker", variables) == "/d.sock"
    assert engine_socket("podman", variables) == "/p.sock"
    with pytest.raises(ValueError, match="CONTAINER_HOST is 'ssh://a'"):
        engine_socket("podman", {"CONTAINER_HOST": "ssh://a"})


def test_sockets_of_the_user_are_found(tmp_path: Path) -> None:
    variables = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert engine_socket("podman", variables) == "/run/podman/podman.sock"
    own = tmp_path / "podman/podman.sock"
    own.parent.mkdir()
    own.touch()
    assert engine_socket("podman", variables) == str(own)


def test_engines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert facts_of(DOCKER) == EngineFacts("Docker 27.0", False, False)
    assert facts_of(PODMAN, Rootless=False) == EngineFacts("Podman 4.3.1", True, False)
    assert facts_of(PODMAN, Rootless=True).is_rootless
    options = ["name=seccomp", "name=rootless"]
    assert facts_of(DOCKER, SecurityOptions=options).is_rootless


def test_root_refuses_the_engine_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(EngineUnusable, match="the user of the engine"):
        facts_of(PODMAN, Rootless=True)


@pytest.mark.parametrize(
    ("is_podman", "is_rootless", "own", "expected"),
    [
        (False, False, (0, 0), (1000, 1000)),
        (False, False, (5, 6), (5, 6)),
        (True, True, (5, 6), (5, 6)),
        # The root of the container is the agent's user.
        (False, True, (5, 6), (0, 0)),
    ],
)
def test_default_user_of_containers(
    is_podman: bool, is_rootless: bool, own: tuple[int, int], expected: tuple[int, int]
) -> None:
    facts = EngineFacts("", is_podman, is_rootless)
    assert facts.default_user(own, (1000, 1000)) == expected
    assert facts.user_namespace == ("keep-id" if is_podman and is_rootless else "")


def test_files_belong_to_the_agent_without_root(tmp_path: Path) -> None:
    rules = ContainerRules(tmp_path, "node", 0, 0, is_rootless=True)
    engine = cast(EngineClient, Engine(DOCKER))
    assert DockerRuntime(engine, rules, print).owner is None


def test_podman_gets_its_own_request(tmp_path: Path) -> None:
    rules = ContainerRules(tmp_path, "node", 5, 6, is_podman=True, user_namespace="keep-id")
    body = container_body(assignment(tmp_path, GPUS), rules, lambda _: 100)
    host = body["HostConfig"]
    assert "Healthcheck" not in body
    assert "label=disable" in host["SecurityOpt"]
    assert host["UsernsMode"] == "keep-id"
    assert host["DeviceRequests"][0]["Driver"] == "cdi"
    assert {"Name": "nproc", "Soft": 100, "Hard": 100} in host["Ulimits"]


def test_container_runs_as_the_agent_user(tmp_path: Path) -> None:
    rules = ContainerRules(tmp_path, "node", 1000, 1000)
    user = MachineUser(70_001, 70_002, (70_002, 44), "ada")
    body = container_body(assignment(tmp_path), rules, lambda _: -1, user=user)
    assert body["User"] == "70001:70002"
    assert body["HostConfig"]["GroupAdd"] == ["70002", "44"]


@pytest.mark.parametrize(
    ("record", "runtime", "is_refused"),
    [
        ({}, "docker", False),
        ({}, "podman", True),
        ({"runtime": "podman"}, "podman", False),
        ({"runtime": "podman"}, "docker", True),
        ({"runtime": "podman"}, "process", True),
    ],
)
def test_runtime_cannot_change_while_trials_run(
    tmp_path: Path, record: dict[str, str], runtime: str, is_refused: bool
) -> None:
    folder = tmp_path / "allocations/4.1/agent"
    folder.mkdir(parents=True)
    (folder / "container.json").write_text(json.dumps(record))
    if not is_refused:
        _check_no_other_runtime(runtime, tmp_path)
        return
    with pytest.raises(ConfigurationError, match="was begun with --container-runtime"):
        _check_no_other_runtime(runtime, tmp_path)
