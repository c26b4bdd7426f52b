"""The command lines and variables of Apptainer, and programs that are not usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.agent.apptainer.program import (
    ApptainerUnusable,
    ContainerPlace,
    exec_words,
    find_program,
    launch_environment,
    mount_text,
)

MOUNT = {"Source": "/data/a,b", "Target": "/data", "ReadOnly": True}


def place(device: str = "cpu", *, drops_privileges: bool = False) -> ContainerPlace:
    return ContainerPlace(Path("/h"), Path("/c"), [MOUNT], device, drops_privileges)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apptainer is not on the PATH"),
        ("echo 1.0.3", "has the version '1.0.3'; install Apptainer 1.1"),
        ("echo unknown", "has the version 'unknown'"),
        ("echo broken >&2; exit 3", "version failed: broken"),
    ],
)
def test_unusable_programs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    if script is not None:
        program = tmp_path / "apptainer"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ApptainerUnusable, match=message):
        find_program()


def test_usable_program_has_a_path_and_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho 1.4.5-2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program() == (str(program), "1.4.5-2")


@pytest.mark.parametrize(("device", "option"), [("cuda", "--nv"), ("rocm", "--rocm"), ("cpu", "")])
def test_container_gets_the_devices_of_its_slots(device: str, option: str) -> None:
    words = exec_words("apptainer", "image.sif", place(device))
    assert [word for word in words if word in ("--nv", "--rocm")] == ([option] if option else [])
    assert words[-1] == "image.sif"
    assert "--no-privs" not in words
    assert "--no-privs" in exec_words("apptainer", "i", place(drops_privileges=True))


def test_path_with_a_comma_is_a_single_field_of_a_mount() -> None:
    assert mount_text(MOUNT) == 'type=bind,"source=/data/a,b",destination=/data,ro'


def test_values_reach_the_container_by_variables_and_not_by_the_command_line() -> None:
    agent = {
        "PATH": "/bin",
        "APPTAINER_CACHEDIR": "/cache",
        "APPTAINERENV_TOKEN": "of the agent",
        "APPTAINER_DOCKER_PASSWORD": "of the agent",
        "SECRET": "of the agent",
    }
    container = {"HOME": "/h", "DETCLOUD_TRIAL_DIR": "/t", "KEY": "$(id)"}
    assert launch_environment(agent, container) == {
        "PATH": "/bin",
        "APPTAINER_CACHEDIR": "/cache",
        "HOME": "/h",
        "DETCLOUD_TRIAL_DIR": "/t",
        "APPTAINERENV_DETCLOUD_TRIAL_DIR": "/t",
        "APPTAINERENV_KEY": "$(id)",
    }
