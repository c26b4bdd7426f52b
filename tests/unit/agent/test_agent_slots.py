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
    assert [slot.type for slot in discover_slots(count, without_gpus)] == types


def test_an_agent_may_have_no_slots() -> None:
    assert cpu_slots(0) == []
