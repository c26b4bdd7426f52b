"""The use of AMD GPUs from files like /sys/class/drm of the kernel driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.agent.slots import Slot, SlotsUnknown
from detcloud.agent.usage.amd import AmdReader
from detcloud.agent.usage.nvml import GpuReading
from tests.unit.agent.usage.test_agent_usage_sampler import FakeAllocation, FakeNode, Watch

SLOTS = [
    Slot(n, "rocm", f"GPU-{n}", "MI300X", files=("/dev/kfd", f"/dev/dri/renderD{128 + n}"))
    for n in range(2)
]


def write(drm: Path, number: int, **values: str) -> None:
    folder = drm / f"renderD{128 + number}/device"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def test_use_is_read_from_the_files_of_each_gpu(tmp_path: Path) -> None:
    memory = {"mem_info_vram_total": "4000", "mem_info_vram_used": "1000"}
    write(tmp_path, 0, gpu_busy_percent="37", **memory)
    # The driver has no use of some models.
    write(tmp_path, 1, gpu_busy_percent="", **memory)
    readings = AmdReader(SLOTS, tmp_path).read(["GPU-0", "GPU-1", "GPU-9"])
    assert readings == {"GPU-0": GpuReading(37.0, 0.25), "GPU-1": GpuReading(None, 0.25)}


def test_driver_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SlotsUnknown, match="none of the AMD GPUs"):
        AmdReader(SLOTS, tmp_path).read(["GPU-0"])
    assert AmdReader(SLOTS, tmp_path).read([]) == {}


def test_gpu_of_a_mac_counts_as_used() -> None:
    """The system has no figure of the GPU, so that no run on it counts as idle or little used."""
    allocation = FakeAllocation("1.1", [0], has_idle_timeout=True)
    watch = Watch(FakeNode([Slot(0, "mps", "mps-m", "Apple M3")], [allocation]), None)
    watch.run(100)
    assert allocation.noted > 0
    assert allocation.sums.measured_ms == 0
    assert watch.lines == []
