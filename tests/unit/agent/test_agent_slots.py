from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.agent.slots import (
    Slot,
    SlotsUnknown,
    cpu_slots,
    discover_slots,
    nvidia_slots,
    parse_nvidia_listing,
    usable_cores,
)


def test_nvidia_devices_become_slots() -> None:
    listing = "0, GPU-a, NVIDIA H100 80GB HBM3\n1, GPU-b, NVIDIA H100 80GB HBM3\n"
    assert parse_nvidia_listing(listing)[1] == Slot(1, "cuda", "GPU-b", "NVIDIA H100 80GB HBM3")
    with pytest.raises(SlotsUnknown, match="No devices"):
        parse_nvidia_listing("No devices were found")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the machine an nvidia-smi that runs a shell script."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return install


FAILS = "echo NVIDIA-SMI has failed; exit 9"


@pytest.mark.parametrize("script", [FAILS, "echo No devices were found"])
def test_an_image_for_gpus_on_a_machine_without_has_none(
    script: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(script)
    device = tmp_path / "sys/bus/pci/devices/0000:00:03.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1d0f\n")
    assert nvidia_slots(tmp_path) == []


@pytest.mark.parametrize("place", ["sys/bus/pci/devices/0000:00:1e.0/vendor", "dev/nvidia0"])
def test_a_gpu_that_cannot_be_asked_is_no_cpu(
    place: str, nvidia_smi: Callable[[str], None], tmp_path: Path
) -> None:
    nvidia_smi(FAILS)
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text("0x10de\n")
    with pytest.raises(SlotsUnknown, match="NVIDIA-SMI has failed"):
        nvidia_slots(tmp_path)


@pytest.mark.parametrize(
    ("listed", "count", "without_gpus", "found"),
    [
        ("", None, None, ["cpu"] * usable_cores()),
        ("", None, 1, ["cpu"]),
        ("", None, 0, []),
        ("0, GPU-a, H100", None, 0, ["cuda"]),
        ("0, GPU-a, H100", 2, 0, ["cpu", "cpu"]),
    ],
)
def test_cpu_slots_are_for_machines_without_gpus_unless_they_are_asked_for(
    listed: str,
    count: int | None,
    without_gpus: int | None,
    found: list[str],
    nvidia_smi: Callable[[str], None],
) -> None:
    nvidia_smi(f"echo '{listed}'")
    assert [slot.type for slot in discover_slots(count, without_gpus)] == found


def test_an_agent_may_have_no_slots() -> None:
    assert cpu_slots(0) == []
