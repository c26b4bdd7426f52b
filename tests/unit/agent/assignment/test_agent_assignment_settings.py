"""Settings for containers in a process: supported settings, and notices about unsupported ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.assignment.bind_mounts import (
    BindMount,
    MountImpossible,
    bind_mounts,
    make_links,
)
from detcloud.agent.assignment.data_layer import data_layer_variables
from detcloud.agent.assignment.unused_settings import container_notices
from detcloud.agent.assignment.unused_settings import process_notices as notices

REASON = "this agent runs trials as processes"


def mounts(*pairs: tuple[Path | str, str], **fields: Any) -> list[BindMount]:
    entries = [{"host_path": str(h), "container_path": c, **fields} for h, c in pairs]
    return bind_mounts({"bind_mounts": entries})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory with model code; its parent has a folder `data` with a file."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows").write_text("1 2 3")
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "model_def.py").touch()
    return code


def test_a_relative_path_becomes_a_link_in_the_working_directory(folder: Path) -> None:
    data = folder.parent / "data"
    pairs = [(data, "data"), (data, "package/deep/er"), (data / "rows", "./rows")]
    make_links(mounts(*pairs), folder)
    assert (folder / "data").readlink() == data
    assert (folder / "package/deep/er/rows").read_text() == "1 2 3"
    assert (folder / "rows").read_text() == "1 2 3"


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ("model_def.py", "is taken"),
        ("package", "is taken"),
        ("model_def.py/below", "is taken"),
        ("../outside", "is not inside the working directory"),
        ("package/../../outside", "is not inside the working directory"),
        ("package/..", "is not inside the working directory"),
    ],
)
def test_a_mount_link_cannot_replace_code_or_leave_the_directory(
    folder: Path, container: str, why: str
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(MountImpossible, match=why):
        make_links(mounts((folder.parent / "data", container)), folder)
    assert sorted(folder.rglob("*")) == before
    assert not (folder.parent / "outside").exists()


def test_a_mount_inside_a_mount_is_refused(folder: Path) -> None:
    data = folder.parent / "data"
    with pytest.raises(MountImpossible, match="inside another mount"):
        make_links(mounts((data, "data"), (data, "data/below")), folder)
    assert [path.name for path in data.iterdir()] == ["rows"]


@pytest.mark.parametrize("container", ["data", "/mnt/data", "/no/such/place"])
def test_a_host_path_must_exist(folder: Path, container: str) -> None:
    with pytest.raises(MountImpossible, match="/no/such/place does not exist on this agent"):
        make_links(mounts(("/no/such/place", container)), folder)


@pytest.mark.parametrize(
    "entry", ["data", {"host_path": "/a"}, {"host_path": "a", "container_path": "b"}, {}, None]
)
def test_malformed_mount_entry_is_refused(entry: object) -> None:
    with pytest.raises(MountImpossible, match="bind mount"):
        bind_mounts({"bind_mounts": [entry]})


@pytest.mark.parametrize(
    ("fields", "container", "expected"),
    [
        ({}, "data", []),
        ({}, "/data", []),
        ({}, "/data/", []),
        (
            {},
            "/mnt/data",
            [
                f"[detcloud] bind mount /mnt/data is not made: {REASON}; use the host's path "
                "/data, or a relative container_path"
            ],
        ),
        (
            {"read_only": True},
            "data",
            [f"[detcloud] bind mount data: read_only cannot be enforced: {REASON}"],
        ),
        (
            {"read_only": True, "propagation": "shared"},
            "data",
            [
                "[detcloud] bind mount data: read_only and propagation shared cannot be enforced: "
                f"{REASON}"
            ],
        ),
    ],
)
def test_a_partly_supported_mount_has_a_single_notice(
    fields: dict[str, Any], container: str, expected: list[str]
) -> None:
    entry = {"host_path": "/data", "container_path": container, **fields}
    assert notices({"bind_mounts": [entry]}, device="cpu") == expected


def test_default_settings_have_no_notice() -> None:
    from control_plane.config.environment import Environment
    from control_plane.config.resources import Resources

    config = {
        "environment": Environment().model_dump(mode="json"),
        "resources": Resources().model_dump(mode="json"),
        "bind_mounts": [],
    }
    assert (
        notices(config, device="cpu")
        == notices(config, device="cuda")
        == notices({}, device="cuda")
        == []
    )


def test_settings_for_containers_have_notices() -> None:
    config = {
        "environment": {
            "image": {"cpu": "org/cpu:1", "cuda": None, "rocm": None},
            "force_pull_image": True,
            "registry_auth": {"username": "me", "password": "********"},
            "ports": {"web": 8080},
            "environment_variables": {"cpu": ["HOME=/root", "DETCLOUD_X=1", "A=1"], "cuda": []},
        },
        "resources": {"shm_size": 0, "devices": [{"host_path": "/dev/x"}], "priority": 3},
    }
    assert notices(config, device="cpu") == [
        f"[detcloud] image org/cpu:1 is not used: {REASON}",
        f"[detcloud] environment.force_pull_image is not used: {REASON}",
        f"[detcloud] environment.registry_auth is not used: {REASON}",
        f"[detcloud] resources.shm_size is not used: {REASON}",
        f"[detcloud] resources.devices is not used: {REASON}",
        "[detcloud] environment.ports is not used: containers use the machine's own network",
        "[detcloud] environment variables DETCLOUD_X, HOME: the runtime's value is used instead",
    ]
    # The notice names only the image for the trial's kind of device.
    assert not any("image org" in notice for notice in notices(config, device="cuda"))


def test_unsupported_settings_have_notices_in_processes_and_containers() -> None:
    config = {
        "environment": {"slurm": ["--exclusive"], "add_capabilities": ["SYS_PTRACE"], "pbs": []},
        "slurm": {"gpu_type": "v100"},
        "pbs": {},
        "optimizations": {"grad_updates_size_file": "sizes.txt"},
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/c", "checkpoint_path": "a"},
    }
    expected = {
        "environment.add_capabilities",
        "environment.slurm",
        "slurm",
        "optimizations.grad_updates_size_file",
        "checkpoint_storage.checkpoint_path",
    }
    for lines in (notices(config, device="cpu"), container_notices(config, "org/x", device="cpu")):
        assert {line.split()[1] for line in lines} == expected
        assert all(" is not used: " in line for line in lines)
    storage = {"type": "directory", "container_path": "/c"}
    assert notices({"checkpoint_storage": storage}, device="cpu") == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_default_images_have_no_notice(device: str) -> None:
    from control_plane.config.eras import STEP_ERA

    config = {"environment": {"image": {**STEP_ERA.defaults["environment"]["image"], "rocm": None}}}
    assert (
        notices(config, device=device) == container_notices(config, "ours:1", device=device) == []
    )
    theirs = {"environment": {"image": {"cpu": "determinedai/environments:x", "cuda": "org/x"}}}
    assert (
        len(notices(theirs, device=device))
        == len(container_notices(theirs, "o", device=device))
        == 1
    )


def test_configuration_too_large_for_a_variable_has_a_notice() -> None:
    (line,) = notices({"data": "x" * (120 * 1024)}, device="cpu")
    assert "variable DET_EXPERIMENT_CONFIG is not set: the configuration has more than" in line


def test_data_layer_variable_names_the_host_path(tmp_path: Path) -> None:
    paths = {"host_storage_path": "/data/sets", "container_storage_path": "/sets"}
    config = {"data_layer": {"type": "shared_fs", **paths}}
    default = tmp_path / "own"
    assert data_layer_variables(config, default) == {"DETCLOUD_DATA_LAYER_PATH": "/data/sets"}
    assert data_layer_variables({}, default) == {"DETCLOUD_DATA_LAYER_PATH": str(default)}
    assert data_layer_variables({}, None) == {}
    assert notices(config, device="cpu") == [
        f"[detcloud] data_layer.container_storage_path is not used: {REASON}, which find the folder"
        " at /data/sets"
    ]
    # Settings of a different type of data layer are ignored.
    bucket = {"type": "s3", "local_cache_host_path": "/c", "local_cache_container_path": "/c/"}
    assert data_layer_variables({"data_layer": {**bucket, **paths}}, default) == {
        "DETCLOUD_DATA_LAYER_PATH": "/c"
    }
    assert notices({"data_layer": bucket}, device="cpu") == []
