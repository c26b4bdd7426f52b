from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.agent.devices.discovery import discover_slots
from detcloud.agent.devices.nvidia import nvidia_slots
from detcloud.agent.slots import (
    Slot,
    SlotsUnknown,
    cpu_slots,
    usable_cores,
)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that installs the given shell script as nvidia-smi on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return install


FAILS = "echo NVIDIA-SMI has failed; exit 9"


@pytest.mark.parametrize("script", [FAILS, "echo No devices were found"])
def test_gpu_image_without_a_gpu_has_no_gpu_slots(
    script: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(script)
    device = tmp_path / "sys/bus/pci/devices/0000:00:03.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1d0f\n")
    assert nvidia_slots(tmp_path) == []


@pytest.mark.parametrize("place", ["sys/bus/pci/devices/0000:00:1e.0/vendor", "dev/nvidia0"])
def test_an_unreadable_gpu_is_an_error(
    place: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(FAILS)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("0x10de\n")
    with pytest.raises(SlotsUnknown, match="NVIDIA-SMI has failed"):
        nvidia_slots(tmp_path)


@pytest.mark.parametrize(
    ("listed", "count", "without_gpus", "types"),
    [
        ("", None, None, ["cpu"] * usable_cores()),
        ("", None, 1, ["cpu"]),
        ("", None, 0, []),
        ("0, GPU-a, H100", None, 0, ["cuda"]),
        ("0, GPU-a, H100", 2, 0, ["cpu", "cpu"]),
    ],
)
def test_cpu_slots_require_no_gpu_or_an_explicit_count(
    listed: str,
    count: int | None,
    without_gpus: int | None,
    types: list[str],
    nvidia_smi: Callable[[str], None],
) -> None:
    nvidia_smi(f"echo '{listed}'")
    assert [slot.type for slot in discover_slots(count, without_gpus, environment={})] == types


def test_slot_type_excludes_other_devices(nvidia_smi: Callable[[str], None]) -> None:
    nvidia_smi("echo '0, GPU-a, H100'")
    assert {slot.type for slot in discover_slots(None, 2, "cpu", {})} == {"cpu"}
    assert [slot.uuid for slot in discover_slots(None, 2, "cuda", {})] == ["GPU-a"]
    with pytest.raises(SlotsUnknown, match="--slot-type mps"):
        discover_slots(None, 2, "mps", {})


def test_enrolment_has_the_fields_of_the_protocol() -> None:
    slot = Slot(3, "cuda", "MIG-a", "A100 MIG 1g.5gb", 5120, "GPU-a")
    assert slot.fields == {
        "id": 3,
        "type": "cuda",
        "uuid": "MIG-a",
        "name": "A100 MIG 1g.5gb",
        "memory_mib": 5120,
    }


def test_an_agent_may_have_no_slots() -> None:
    assert cpu_slots(0) == []
