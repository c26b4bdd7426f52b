"""Requests to a container engine, and the meaning of answers, without an engine."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.allocation.exit_record import exit_record
from detcloud.agent.assignment.assignment import Assignment, LaunchImpossible
from detcloud.agent.assignment.bind_mounts import MountImpossible
from detcloud.agent.assignment.environment import container_environment
from detcloud.agent.assignment.startup_hook import HOOK_FILE
from detcloud.agent.assignment.unused_settings import container_notices
from detcloud.agent.docker.container import ContainerRules, container_body
from detcloud.agent.docker.engine import EngineClient, EngineError, split_reference
from detcloud.agent.docker.engine_choice import engine_socket
from detcloud.agent.docker.exit_status import (
    EndedContainer,
    creation_refused_status,
    engine_unavailable_status,
    exit_status,
)
from detcloud.agent.docker.images import (
    DOCKER_HUB_LOGIN,
    ImageRequest,
    image_request,
    is_refusal,
    obtain_image,
)
from detcloud.agent.docker.launch import container_name
from detcloud.agent.runtime import Phase, Status
from detcloud.agent.slots import Slot
from detcloud.shared.files import read_untrusted_json_object

GPUS = [Slot(0, "cuda", "GPU-a", "H100"), Slot(3, "cuda", "GPU-d", "H100")]


def assignment(folder: Path, slots: list[Slot] | None = None, **config: Any) -> Assignment:
    directory = AllocationDirectory(folder / "allocations", "4.1")
    directory.create()
    spec = {"cluster_id": "c", "config": config}
    return Assignment(directory, spec, slots or [], threads=2, log_bytes_max=100)


def body_of(folder: Path, *, limit: int = -1, **config: Any) -> dict[str, Any]:
    rules = ContainerRules(folder, "node", 1000, 1001)
    return container_body(assignment(folder, **config), rules, lambda _: limit)


def test_multi_node_trial_gets_fabric_devices(tmp_path: Path) -> None:
    for name in ("uverbs1", "uverbs0", "rdma_cm"):
        (tmp_path / name).touch()
    given = assignment(tmp_path)
    rules = ContainerRules(tmp_path, "node", 1000, 1000, fabric_devices=tmp_path)
    assert container_body(given, rules, lambda _: -1)["HostConfig"]["Devices"] == []
    several = replace(given, spec={**given.spec, "nodes": 2})
    devices = container_body(several, rules, lambda _: -1)["HostConfig"]["Devices"]
    assert [device["PathOnHost"] for device in devices] == [
        f"{tmp_path}/uverbs0",
        f"{tmp_path}/uverbs1",
    ]
    assert {device["CgroupPermissions"] for device in devices} == {"rw"}


@pytest.mark.parametrize("given", [None, "rshared"])
def test_checkpoint_mount_uses_the_configured_propagation(
    tmp_path: Path, given: str | None
) -> None:
    storage = {"type": "shared_fs", "host_path": str(tmp_path), "propagation": given}
    trial = assignment(tmp_path / "work", checkpoint_storage=storage)
    trial = replace(
        trial, spec={**trial.spec, "storage": {"type": "shared_fs", "path": str(tmp_path)}}
    )
    body = container_body(trial, ContainerRules(tmp_path, "node", 1000, 1000), lambda _: -1)
    (mount,) = (item for item in body["HostConfig"]["Mounts"] if item["Target"] == str(tmp_path))
    assert mount["BindOptions"]["Propagation"] == (given or "rprivate")


def test_a_trial_gets_only_its_assigned_gpus(tmp_path: Path) -> None:
    given = assignment(tmp_path, GPUS)
    rules = ContainerRules(tmp_path, "node", 1000, 1000)
    body = container_body(given, rules, lambda _: -1)
    (request,) = body["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-a", "GPU-d"]
    environment = given.environment(container_environment(2))
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-d"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-d"
    assert body_of(tmp_path)["HostConfig"]["DeviceRequests"] == []
    without = assignment(tmp_path).environment(container_environment(2))
    assert (without["CUDA_VISIBLE_DEVICES"], without["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_a_container_inherits_no_variables_of_the_agent(tmp_path: Path) -> None:
    environment = assignment(tmp_path).environment(container_environment(2))
    assert not {"PATH", "LANG", "LD_LIBRARY_PATH"} & set(environment)
    assert environment["PYTHONPATH"] == "/run/detcloud"
    assert environment["OMP_NUM_THREADS"] == "2"


def test_hook_may_install_packages_for_the_python_of_the_image(tmp_path: Path) -> None:
    """PEP 668: pip refuses to install packages for the Python of Ubuntu, the default image's."""
    environment = assignment(tmp_path).environment(container_environment(2))
    assert environment["PIP_BREAK_SYSTEM_PACKAGES"] == "1"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (-1, {"memlock": -1, "stack": 64 << 20, "nofile": 65_536}),
        (20_000, {"memlock": 20_000, "stack": 20_000, "nofile": 20_000}),
        (1 << 40, {"memlock": 1 << 40, "stack": 64 << 20, "nofile": 65_536}),
    ],
)
def test_ulimits_are_capped_by_the_agents_limits(
    tmp_path: Path, limit: int, expected: dict[str, int]
) -> None:
    limits = body_of(tmp_path, limit=limit)["HostConfig"]["Ulimits"]
    assert {ulimit["Name"]: ulimit["Soft"] for ulimit in limits} == expected
    assert all(ulimit["Soft"] == ulimit["Hard"] for ulimit in limits)


@pytest.mark.parametrize(("given", "expected"), [({}, 4 << 30), ({"shm_size": 7}, 7)])
def test_shared_memory_is_4_gib_unless_configured(
    tmp_path: Path, given: dict[str, int], expected: int
) -> None:
    assert body_of(tmp_path, resources=given)["HostConfig"]["ShmSize"] == expected


def test_only_allowed_devices_are_passed_to_the_container(tmp_path: Path) -> None:
    device = {"host_path": "/dev/null", "container_path": "/dev/x", "mode": "rw"}
    (passed,) = body_of(tmp_path, resources={"devices": [device]})["HostConfig"]["Devices"]
    assert passed == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/x",
        "CgroupPermissions": "rw",
    }
    rules = ContainerRules(tmp_path, "node", 1000, 1000, mounts_allowed=(Path("/data"),))
    given = assignment(tmp_path, resources={"devices": [device]})
    with pytest.raises(LaunchImpossible, match="/dev/null is not allowed on this agent"):
        container_body(given, rules, lambda _: -1)


def test_a_link_out_of_the_allowed_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/out").symlink_to("/etc")
    rules = ContainerRules(tmp_path, "node", 1000, 1000, mounts_allowed=(tmp_path / "data",))
    for host, refused in ((tmp_path / "data", False), (tmp_path / "data/out", True)):
        mount = {"host_path": str(host), "container_path": "/d", "propagation": "rslave"}
        given = assignment(tmp_path, bind_mounts=[mount])
        if refused:
            with pytest.raises(LaunchImpossible, match="not allowed"):
                container_body(given, rules, lambda _: -1)
        else:
            made = container_body(given, rules, lambda _: -1)["HostConfig"]["Mounts"][-1]
            assert made["BindOptions"] == {"Propagation": "rslave"}


def test_mounts_use_the_resolved_path(tmp_path: Path) -> None:
    (tmp_path / "data/v1").mkdir(parents=True)
    (tmp_path / "data/now").symlink_to("v1")
    (tmp_path / "data/null").symlink_to("/dev/null")
    rules = ContainerRules(
        tmp_path, "node", 1000, 1000, mounts_allowed=(tmp_path / "data", Path("/dev/null"))
    )
    given = assignment(
        tmp_path,
        bind_mounts=[{"host_path": str(tmp_path / "data/now"), "container_path": "/d"}],
        resources={"devices": [{"host_path": str(tmp_path / "data/null")}]},
    )
    storage = {"type": "shared_fs", "path": str(tmp_path / "data/now/new")}
    given = Assignment(given.directory, {**given.spec, "storage": storage}, [], 1, 1)
    host = container_body(given, rules, lambda _: -1)["HostConfig"]
    mounts = {mount["Target"]: mount["Source"] for mount in host["Mounts"]}
    assert mounts["/d"] == str(tmp_path / "data/v1")
    assert mounts[storage["path"]] == str(tmp_path / "data/v1/new")
    (device,) = host["Devices"]
    assert device["PathOnHost"] == "/dev/null"
    assert device["PathInContainer"] == str(tmp_path / "data/null")


@pytest.mark.parametrize("path", ["..", "../code", "a/../..", "../home"])
def test_a_relative_mount_stays_in_the_working_directory(tmp_path: Path, path: str) -> None:
    mount = {"host_path": str(tmp_path), "container_path": path}
    with pytest.raises(MountImpossible, match="not inside the working directory"):
        body_of(tmp_path, bind_mounts=[mount])


def test_checkpoint_folder_is_mounted_except_for_type_directory(
    tmp_path: Path,
) -> None:
    rules, store = ContainerRules(tmp_path, "node", 1000, 1000), str(tmp_path / "store")
    for kind, expected in ((None, True), ("shared_fs", True), ("directory", False)):
        given = assignment(tmp_path, checkpoint_storage={"type": kind})
        spec = {**given.spec, "storage": {"type": "directory", "path": store}}
        given = Assignment(given.directory, spec, [], 1, 1)
        mounts = container_body(given, rules, lambda _: -1)["HostConfig"]["Mounts"]
        assert (store in [mount["Target"] for mount in mounts]) == expected


def mount_targets(tmp_path: Path, kind: str, folder: str) -> list[str]:
    """Return the mount targets of a container with this storage; only /mnt/shared is allowed."""
    given = assignment(tmp_path)
    spec = {**given.spec, "storage": {"type": kind, "path": folder}}
    rules = ContainerRules(tmp_path, "node", 1000, 1000, (Path("/mnt/shared"),))
    body = container_body(Assignment(given.directory, spec, [], 1, 1), rules, lambda _: -1)
    return [mount["Target"] for mount in body["HostConfig"]["Mounts"]]


def test_a_configured_checkpoint_folder_must_be_allowed(
    tmp_path: Path,
) -> None:
    assert "/srv/own" in mount_targets(tmp_path, "directory", "/srv/own")
    # "scratch" is a type that detcloud does not know.
    for kind in ("shared_fs", "scratch"):
        assert "/mnt/shared/new" in mount_targets(tmp_path, kind, "/mnt/shared/new")
        for folder in ("/srv/own", "/mnt/shared/../other"):
            text = f"checkpoint_storage: {folder} is not allowed"
            with pytest.raises(LaunchImpossible, match=text):
                mount_targets(tmp_path, kind, folder)


def test_link_loops_and_overlong_names_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    loop, long = f"{tmp_path}/a/in", f"{tmp_path}/{'x' * 300}"
    rules = ContainerRules(tmp_path, "node", 1000, 1000, mounts_allowed=(tmp_path,))
    for path, reason in ((loop, "its links lead to each other"), (long, "correct the path")):
        given = assignment(tmp_path, bind_mounts=[{"host_path": path, "container_path": "d"}])
        with pytest.raises(MountImpossible, match=reason):
            container_body(given, rules, lambda _: -1)
    with pytest.raises(LaunchImpossible, match=r"checkpoints .*its links lead to each other"):
        mount_targets(tmp_path, "directory", loop)


def test_error_for_a_forbidden_path_hides_its_existence(tmp_path: Path) -> None:
    rules = ContainerRules(tmp_path, "node", 1000, 1000, mounts_allowed=())
    (tmp_path / "loop").symlink_to("loop")
    for path in ("/root", "/no/such", f"{tmp_path}/loop"):
        given = assignment(tmp_path, bind_mounts=[{"host_path": path, "container_path": "d"}])
        with pytest.raises(LaunchImpossible, match="not allowed on this agent; allowed are: none"):
            container_body(given, rules, lambda _: -1)


def test_container_names_are_stable_and_differ_between_work_directories(tmp_path: Path) -> None:
    first, second = (tmp_path / name / "allocations/4.1/agent" for name in "ab")
    assert container_name(first) == container_name(first)
    assert container_name(first) != container_name(second)
    assert container_name(first).startswith("detcloud-4.1-")


RECORD = {"stage": "trial", "code": None, "signal": 9, "killed": False}
KILLED = {**RECORD, "killed": True}
EXIT_3 = {**RECORD, "code": 3, "signal": None}


@pytest.mark.parametrize(
    ("state", "record", "begun", "killed", "expected"),
    [
        ({}, RECORD, True, False, Status(Phase.ENDED, "trial", None, 9)),
        ({}, KILLED, True, True, Status(Phase.ENDED, "trial", None, 9, killed=True)),
        # A process other than the agent asked for the end.
        ({}, KILLED, True, False, Status(Phase.ENDED, lost=True)),
        ({"ExitCode": 0}, None, True, False, Status(Phase.ENDED, lost=True)),
        ({"ExitCode": 137}, None, False, False, Status(Phase.ENDED, lost=True)),
        ({"ExitCode": 137}, None, True, True, Status(Phase.ENDED, code=137, killed=True)),
        # Exit codes of the container that match the supervisor's record, and codes that do not.
        ({"ExitCode": 128 + 9}, RECORD, True, False, Status(Phase.ENDED, "trial", None, 9)),
        ({"ExitCode": 3}, EXIT_3, True, False, Status(Phase.ENDED, "trial", 3)),
        ({"ExitCode": 0}, EXIT_3, True, False, Status(Phase.ENDED, lost=True)),
        ({"ExitCode": 137}, EXIT_3, True, False, Status(Phase.ENDED, lost=True)),
        ({"ExitCode": 137}, EXIT_3, True, True, Status(Phase.ENDED, code=137, killed=True)),
        ({}, {**RECORD, "stage": 7}, True, False, Status(Phase.ENDED, lost=True)),
        ({}, {**RECORD, "signal": 65}, True, False, Status(Phase.ENDED, lost=True)),
        ({}, {**RECORD, "code": True}, True, False, Status(Phase.ENDED, lost=True)),
        ({}, {**RECORD, "code": 256, "signal": None}, True, False, Status(Phase.ENDED, lost=True)),
        ({}, {"stage": "trial"}, True, False, Status(Phase.ENDED, lost=True)),
    ],
)
def test_exit_status_requires_a_consistent_supervisor_record(
    state: dict[str, Any],
    record: dict[str, Any] | None,
    begun: bool,
    killed: bool,
    expected: Status,
) -> None:
    assert exit_status(EndedContainer(state, record, begun, killed)) == expected


def test_failure_of_each_stage_is_recorded(tmp_path: Path) -> None:
    with_hook = assignment(tmp_path)
    with_hook.directory.code.mkdir(exist_ok=True)
    (with_hook.directory.code / HOOK_FILE).touch()
    stages = [stage for stage, _ in with_hook.stages("python3", tmp_path, install=["pip"])]
    assert stages == ["packages", "hook", "trial"]
    for stage in stages:
        record = {"stage": stage, "code": 1, "signal": None, "killed": False}
        ended = exit_status(EndedContainer({"ExitCode": 1}, record, True, False))
        assert ended == Status(Phase.ENDED, stage, 1)


def test_out_of_memory_is_named_as_the_cause() -> None:
    state = {"OOMKilled": True, "ExitCode": 137}
    words = "out of memory: the kernel ended a process at the container's limit of 64 MiB"
    for record in (RECORD, None):
        ended = exit_status(EndedContainer(state, record, True, False, 64 << 20))
        assert ended.cause == words
        assert exit_record(ended, [], "", revision=1)["reason"] == "errored"
    # The trial succeeded without the killed process.
    well = {**RECORD, "code": 0, "signal": None}
    state["ExitCode"] = 0
    assert exit_status(EndedContainer(state, well, True, False)).cause == ""


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "errored"), (404, "start_failed"), (500, "start_failed")]
)
def test_refused_container_is_the_trials_or_the_machines_failure(status: int, reason: str) -> None:
    ended = creation_refused_status(EngineError(status, "no space left on device"))
    record = exit_record(ended, [], "a line of the log", revision=1)
    assert record["reason"] == reason
    assert record["message"] == "the container could not be started: no space left on device"
    assert (
        exit_record(engine_unavailable_status("x"), [], "", revision=1)["reason"] == "start_failed"
    )


def test_untrusted_json_is_read_only_from_small_regular_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text('{"a": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text('{"a": "' + "x" * 70_000 + '"}')
    assert read_untrusted_json_object(tmp_path / "plain") == {"a": 1}
    for name in ("link", "pipe", "folder", "large", "none"):
        assert read_untrusted_json_object(tmp_path / name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("image", ("image", "latest")),
        ("org/image:1", ("org/image", "1")),
        ("host:5000/org/image", ("host:5000/org/image", "latest")),
        ("host:5000/org/image:1", ("host:5000/org/image", "1")),
        ("org/image@sha256:ab", ("org/image", "sha256:ab")),
        ("host:5000/image:1@sha256:ab", ("host:5000/image", "sha256:ab")),
    ],
)
def test_image_reference_is_split_into_name_and_tag_or_digest(
    name: str, expected: tuple[str, str]
) -> None:
    # Without a tag an engine would pull all tags.
    assert split_reference(name) == expected


@pytest.mark.parametrize(
    ("status", "message", "refusal"),
    [
        (404, "pull access denied for x, repository does not exist", True),
        (500, "unauthorized: incorrect username or password", True),
        (500, "manifest for org/x:1 not found: manifest unknown", True),
        (500, "no matching manifest for linux/arm64 in the manifest list entries", True),
        (500, "dial tcp: lookup registry.example on 10.0.0.2: no such host", False),
        (500, "toomanyrequests: You have reached your pull rate limit", False),
        (500, "write /var/lib/docker/tmp/x: no space left on device", False),
        (500, "received unexpected HTTP status: 503 Service Unavailable", False),
        (500, "Get https://registry.example/v2/: Proxy Authentication Required", False),
    ],
)
def test_refusals_of_a_registry_differ_from_transient_errors(
    status: int, message: str, refusal: bool
) -> None:
    assert is_refusal(EngineError(status, message)) == refusal


@pytest.mark.parametrize(
    ("name", "server", "expected"),
    [
        ("org/image:1", None, DOCKER_HUB_LOGIN),
        ("ghcr.io/org/image", None, "ghcr.io"),
        ("localhost/image", None, "localhost"),
        ("host:5000/image", None, "host:5000"),
        ("Intranet/image", None, "Intranet"),
        ("org/image", "https://index.docker.io/v1/", "https://index.docker.io/v1/"),
        ("docker.io/org/image", "index.docker.io", "index.docker.io"),
        ("registry.example/image", "https://registry.example", "https://registry.example"),
        ("Host:5000/image", "host:5000/v2/", "host:5000/v2/"),
    ],
)
def test_a_login_is_sent_to_the_images_registry(
    name: str, server: str | None, expected: str
) -> None:
    login = {"username": "me", "password": "secret", "server": server, "email": None}
    request = image_request(name, {"force_pull_image": True}, login)
    assert request.login == {"username": "me", "password": "secret", "serveraddress": expected}
    assert request.force_pull
    assert "secret" not in repr(request)
    assert image_request(name, {}, None) == ImageRequest(name)
    token = {"identitytoken": "secret", "password": None, "serveraddress": server}
    request = image_request(name, {}, token)
    assert request.login == {"identitytoken": "secret", "serveraddress": expected}
    assert "secret" not in repr(request)


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("evil.example/x", "ghcr.io"),
        ("org/image", "https://registry.example"),
        ("EVIL/image", "docker.io"),
        ("host:5000/image", "host"),
        ("ghcr.io.evil.example/x", "ghcr.io"),
        ("ghcr.io/x", "ghcr.io.evil.example"),
    ],
)
def test_a_login_for_a_foreign_registry_is_not_sent(name: str, server: str) -> None:
    request = image_request(name, {}, {"auth": "secret", "serveraddress": server})
    assert request.login is None
    request = image_request(name, {}, {"username": "me", "password": "secret", "server": server})
    assert request.login is None

    class RefusingEngine(EngineClient):
        def find_image(self, name: str) -> None:
            return None

        def pull_image(self, name: str, login: object, on_event: object) -> None:
            assert login is None
            raise EngineError(401, "unauthorized")

    why = f"environment.registry_auth is for {re.escape(server)} and was not sent;"
    with pytest.raises(LaunchImpossible, match=why):
        obtain_image(RefusingEngine(""), request, lambda: True, lambda _: None)


def test_gpus_are_requested_by_cdi_if_the_engine_knows_all(tmp_path: Path) -> None:
    made = assignment(tmp_path, GPUS)

    def request_for(*known: str) -> Any:
        rules = ContainerRules(tmp_path, "node", 1000, 1000)
        body = container_body(made, rules, lambda _: -1, known)
        return body["HostConfig"]["DeviceRequests"]

    names = ["nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-d"]
    assert request_for(*names, "nvidia.com/gpu=all") == [{"Driver": "cdi", "DeviceIDs": names}]
    by_hook = {"Driver": "nvidia", "DeviceIDs": ["GPU-a", "GPU-d"], "Capabilities": [["gpu"]]}
    assert request_for() == request_for(names[0]) == [by_hook]


def test_engine_must_be_on_this_machine() -> None:
    assert engine_socket("docker", {}) == "/var/run/docker.sock"
    assert engine_socket("docker", {"DOCKER_HOST": "unix:///x.sock"}) == "/x.sock"
    for host in ("tcp://1.2.3.4:2375", "ssh://me@host", "unix://x.sock"):
        with pytest.raises(ValueError, match="must be on this machine"):
            engine_socket("docker", {"DOCKER_HOST": host})


def test_settings_without_effect_in_containers_have_notices() -> None:
    config = {
        "environment": {
            "image": {"cpu": "determinedai/environments:py-3.8", "cuda": None},
            "ports": {"web": 8080},
            "force_pull_image": True,
            "environment_variables": {"cpu": ["HOME=/root"], "cuda": []},
        },
        "resources": {"shm_size": 5},
    }
    assert container_notices(config, "ours:1", device="cpu") == [
        "[detcloud] image determinedai/environments:py-3.8 is one of Determined's: ours:1 is used "
        "instead",
        "[detcloud] environment.ports is not used: containers use the machine's own network",
        "[detcloud] environment variable HOME: the runtime's value is used instead",
    ]
    assert container_notices({}, "ours:1", device="cuda") == []


def test_only_allowed_data_layer_folders_are_mounted(tmp_path: Path) -> None:
    paths = {"host_storage_path": str(tmp_path / "sets"), "container_storage_path": "/sets"}
    config: dict[str, Any] = {"data_layer": {"type": "shared_fs", **paths}}
    mount = body_of(tmp_path, **config)["HostConfig"]["Mounts"][-1]
    assert (mount["Source"], mount["Target"]) == (str(tmp_path / "sets"), "/sets")
    assert mount["ReadOnly"] is False
    rules = ContainerRules(tmp_path, "node", 1000, 1000, mounts_allowed=(Path("/data"),))
    with pytest.raises(LaunchImpossible, match=r"data_layer: .* is not allowed on this agent"):
        container_body(assignment(tmp_path, **config), rules, lambda _: -1)
    assert "/sets" not in {item["Target"] for item in body_of(tmp_path)["HostConfig"]["Mounts"]}
