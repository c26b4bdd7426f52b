"""Images from a registry with a login, pulled by a real engine for a trial."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.docker.image_cache import KEPT_SECONDS
from detcloud.agent.docker.images import ATTEMPTS_MAX
from detcloud.shared.http import ApiError
from tests.conformance.container_runtime import begin, run
from tests.emulators.company_network import company_network
from tests.emulators.docker_engine import DockerEngine, docker_engine, root_folder, shell_files
from tests.emulators.registry import Registry, serving_registry
from tests.integration.agent_process import LEAVE
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.test_docker_runtime import environments
from tests.integration.trial_node import TrialNode, exit_record, log_text
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

PASSWORD = "canary-registry-4c"
TRIAL_IMAGE = Path(__file__).parents[2] / "images/trial"
# Replaces a program that the build calls, and records the call.
NOTES = b'#!/bin/sh\necho "${0##*/} $*" >> /steps\n'
PATH = f"PATH={Path(sys.prefix) / 'bin'}:/usr/bin:/bin"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_registry(Registry(root_folder(), [PATH], "team", PASSWORD)) as served:
        yield served


@pytest.fixture
def node(tmp_path: Path, engine: DockerEngine) -> TrialNode:
    return node_with_attempts(tmp_path, engine, ATTEMPTS_MAX)


def node_with_attempts(folder: Path, engine: DockerEngine, attempts_max: int) -> TrialNode:
    """Return a node that pulls images with short pauses between attempts."""
    options = {"attempts_max": attempts_max, "sleep": lambda _: time.sleep(0.01)}
    runtime = docker_runtime(engine, folder, images=options)
    return TrialNode(folder, runtime=runtime, spec=container_spec())


def asking(image: str, password: str | None = PASSWORD, **environment: Any) -> dict[str, Any]:
    login = {"username": "team", "password": password, "server": None, "email": None}
    config = container_spec(environment=environment)["config"]
    return {
        "image": {"cpu": image},
        "registry_auth": login if password else None,
        "config": config,
    }


def everything(folder: Path) -> bytes:
    """Return the contents of all files that the agent wrote."""
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())


def test_image_is_pulled_once_and_recorded_by_digest(
    node: TrialNode, registry: Registry, tmp_path: Path
) -> None:
    trial = run(node, LEAVE, **asking(registry.image))
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    (record,) = environments(trial)
    assert (record["image"], record["image_digest"]) == (registry.image, registry.digest)
    assert f"[detcloud] pulling image {registry.image}\n" in log_text(trial)
    assert f"[detcloud] image {registry.image}, {registry.digest}\n" in log_text(trial)
    assert PASSWORD.encode() not in everything(tmp_path / "allocations")
    pulls = registry.pulls
    trial.directory.path.rename(tmp_path / "first")
    again = TrialNode(tmp_path / "b", runtime=node.runtime, spec=container_spec())
    assert exit_record(run(again, LEAVE, **asking(registry.image)))["reason"] == "completed"
    assert registry.pulls == pulls
    third = TrialNode(tmp_path / "c", runtime=node.runtime, spec=container_spec())
    run(third, LEAVE, **asking(registry.image, force_pull_image=True))
    assert registry.pulls > pulls
    (tmp_path / "first").rename(trial.directory.path)


def test_refused_early_pull_is_no_failure_of_the_trial(node: TrialNode, registry: Registry) -> None:
    # A cluster of an older version names no login, which this registry needs.
    node.runtime.expect_image(registry.image)
    trial = run(node, LEAVE, **asking(registry.image))
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    (record,) = environments(trial)
    assert record["image_digest"] == registry.digest


def test_image_behind_a_login_is_pulled_before_the_trial(
    node: TrialNode, registry: Registry, engine: DockerEngine, tmp_path: Path
) -> None:
    requested: list[str] = []

    def issue_login(image: str) -> dict[str, str]:
        requested.append(image)
        return {"username": "team", "password": PASSWORD}

    node.runtime.expect_image(registry.image, issue_login)
    wait_until(lambda: engine.api.find_image(registry.image))
    trial = run(node, LEAVE, **asking(registry.image))
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    assert requested == [registry.image]
    assert "was not pulled before" not in log_text(trial)
    assert PASSWORD.encode() not in everything(tmp_path)


def test_failed_early_login_is_recorded_and_the_trial_pulls(
    node: TrialNode, registry: Registry, tmp_path: Path
) -> None:
    def refuse(image: str) -> dict[str, str]:
        raise ApiError(403, "forbidden", "the image is not likely any more")

    node.runtime.expect_image(registry.image, refuse)
    trial = run(node, LEAVE, **asking(registry.image))
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    failure = f"the cluster issues no login for image {registry.image}: the image is not likely"
    assert f"image {registry.image} was not pulled before this trial: " in log_text(trial)
    assert failure in log_text(trial)
    lines = [line.fields for line in trial.lines("agent", 0, 1 << 20)]
    [running] = [line for line in lines if line.get("state") == "RUNNING"]
    assert failure in running["early_pull_failure"]


@pytest.mark.parametrize("password", ["wrong-canary-4c", None])
def test_refused_login_is_a_failure_of_the_trial(
    node: TrialNode, registry: Registry, tmp_path: Path, password: str | None
) -> None:
    trial = run(node, LEAVE, **asking(registry.image, password))
    ended = exit_record(trial)
    assert ended["reason"] == "errored"
    assert f"image {registry.image} cannot be pulled: " in ended["message"]
    assert "environment.registry_auth" in ended["message"]
    assert f"[detcloud] image {registry.image} cannot be pulled" in log_text(trial)
    assert b"wrong-canary" not in everything(tmp_path / "allocations")


def test_missing_image_is_a_failure_of_the_trial(node: TrialNode, registry: Registry) -> None:
    missing = f"{registry.address}/team/missing:9"
    ended = exit_record(run(node, LEAVE, **asking(missing)))
    assert ended["reason"] == "errored"
    assert f"image {missing} cannot be pulled" in ended["message"]
    assert "manifest unknown" in ended["message"]


def test_silent_registry_is_a_failure_of_the_machine(node: TrialNode) -> None:
    trial = run(node, LEAVE, **asking("127.0.0.1:9/team/trial:1"))
    assert exit_record(trial)["reason"] == "start_failed"
    assert log_text(trial).count("trying again") == ATTEMPTS_MAX - 1


def test_kill_ends_the_attempts_to_pull(tmp_path: Path, engine: DockerEngine) -> None:
    node = node_with_attempts(tmp_path, engine, 10_000)
    trial = begin(node, LEAVE, **asking("127.0.0.1:9/team/trial:1"))
    node.watch(trial, lambda: "trying again" in log_text(trial))
    trial.kill(1000)
    node.watch(trial)
    assert exit_record(trial)["reason"] == "killed"


def test_trial_image_builds_on_a_base_without_a_network(engine: DockerEngine) -> None:
    programs = dict.fromkeys(("groupadd", "useradd", "pip", "python3"), NOTES)
    files = {**shell_files(), **{f"opt/{name}": text for name, text in programs.items()}}
    change = ("--change", "ENV PATH=/opt:/bin")
    engine.docker("import", *change, "-", "localhost/slim:1", content=root_folder(files))
    build = ["build", "--network", "host", "-t", "localhost/built:1"]
    base = ["--build-arg", "BASE=localhost/slim:1", "--build-arg", "TORCH=2.99"]
    engine.docker(*build, *base, str(TRIAL_IMAGE))
    config = (engine.api.find_image("localhost/built:1") or {})["Config"]
    assert (config["User"], config["WorkingDir"]) == ("1000:1000", "/home/detcloud")
    show = ["run", "--rm", "--network", "host", "localhost/built:1", "sh", "-c"]
    steps = engine.docker(*show, "while read line; do echo $line; done < /steps").splitlines()
    assert "pip install --no-cache-dir --no-compile --index-url" in " ".join(steps)
    assert any(step.endswith(" torch==2.99") for step in steps)
    assert steps[-1].startswith("python3 -m compileall")


def test_full_disk_removes_pulled_images_after_long_disuse(
    tmp_path: Path, engine: DockerEngine
) -> None:
    others, messages = "localhost/others:1", list[str]()
    disk_share_max = 1.0
    engine.docker("import", "-", others, content=root_folder())

    def run_trial(folder: str, **spec: Any) -> None:
        runtime = docker_runtime(engine, tmp_path, messages, {"disk_share_max": disk_share_max})
        node = TrialNode(tmp_path / folder, runtime=runtime, spec=container_spec())
        assert exit_record(run(node, LEAVE, **spec))["reason"] == "completed"

    def let_time_pass() -> None:
        """Make the last use of every image older than the limit for removal."""
        books = tmp_path / "images.json"
        used_at = json.loads(books.read_text())
        earlier = {image: at - KEPT_SECONDS for image, at in used_at.items()}
        books.write_text(json.dumps(earlier))

    # Unique content; otherwise the image would be another test's image under a second name.
    made = Registry(root_folder(), [PATH, "OF=a full disk"], "team", PASSWORD)
    with serving_registry(made) as registry:
        name = registry.image
        run_trial("a", **asking(name))
        disk_share_max = 0.0
        # The image was used a moment ago.
        run_trial("b")
        let_time_pass()
        # A trial wants the image, and then a container uses it.
        run_trial("c", **asking(name))
        engine.docker("create", "--name", "holder", name, "true")
        let_time_pass()
        run_trial("d")
        assert (bool(engine.api.find_image(name)), messages) == (True, [])
        engine.docker("rm", "holder")
        run_trial("e")
        assert engine.api.find_image(name) is None
        assert "fills up: image sha256:" in messages[0]
        run_trial("f", **asking(name))
        assert engine.api.find_image(name)
    # An agent removes only images that an agent pulled.
    assert engine.api.find_image(others)
    assert len(messages) == 1


def test_engine_pulls_through_a_proxy_with_login_and_own_authority(tmp_path: Path) -> None:
    (tmp_path / "company").mkdir()
    with (
        company_network(tmp_path / "company") as network,
        serving_registry(Registry(root_folder(), [PATH], "team", PASSWORD)) as registry,
        network.front("registry.test", int(registry.address.rpartition(":")[2])) as url,
    ):
        image = registry.image.replace(registry.address, url.partition("://")[2])
        # The variables of the unit of a pool's machine.
        variables = {"SSL_CERT_FILE": str(network.authority.certificate), **network.variables}
        wrong = {**variables, "HTTPS_PROXY": f"http://ada:wrong-canary@{network.place}"}
        with docker_engine(environment=variables) as engine:
            node = node_with_attempts(tmp_path / "right", engine, 1)
            trial = run(node, LEAVE, **asking(image))
            assert exit_record(trial)["reason"] == "completed", log_text(trial)
        with docker_engine(environment=wrong) as engine:
            node = node_with_attempts(tmp_path / "wrong", engine, 1)
            trial = run(node, LEAVE, **asking(image))
    assert exit_record(trial)["reason"] == "start_failed"
    assert "Docker's proxy does not accept its user and password: correct provider.proxy" in (
        log_text(trial)
    )
    assert "wrong-canary" not in log_text(trial)
