"""AMD GPUs and MIG instances of containers."""

from __future__ import annotations

from pathlib import Path

from detcloud.agent.docker.container import ContainerRules, container_body
from detcloud.agent.slots import Slot
from tests.unit.agent.docker.test_agent_docker_container import GPUS, assignment, body_of


def test_trial_on_several_mig_instances_is_warned(tmp_path: Path) -> None:
    instances = [Slot(n, "cuda", f"MIG-{n}", "A100 MIG 1g.5gb", 5120, "GPU-a") for n in range(2)]
    (line,) = assignment(tmp_path / "two", instances).slot_notices()
    assert line.startswith("[detcloud] slots 0, 1 are MIG instances: ")
    assert assignment(tmp_path / "one", instances[:1]).slot_notices() == []
    assert assignment(tmp_path / "gpus", GPUS).slot_notices() == []


def test_container_gets_the_files_of_its_amd_gpus(tmp_path: Path) -> None:
    (tmp_path / "renderD129").touch()
    group = (tmp_path / "renderD129").stat().st_gid
    files = ("/dev/kfd", str(tmp_path / "renderD129"))
    slots = [Slot(0, "rocm", "GPU-a", "MI300X", handle="GPU-a", files=files)]
    given = assignment(tmp_path, slots)
    host = container_body(given, ContainerRules(tmp_path, "n", 1000, 1000), lambda _: -1)[
        "HostConfig"
    ]
    assert [device["PathOnHost"] for device in host["Devices"]] == list(files)
    assert host["DeviceRequests"] == []
    # The group of root has no effect.
    assert host["GroupAdd"] == ([str(group)] if group else [])
    assert body_of(tmp_path)["HostConfig"]["GroupAdd"] == []
