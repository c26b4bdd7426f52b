"""Readings of GPUs with the driver's library, against a library that gcc builds for the test.

NVIDIA's own Python package reads the same library, and has to return the same figures.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.agent.slots import SlotsUnknown
from detcloud.agent.usage.nvml import GpuReader, GpuReading, Nvml, parse_smi

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1 << 30

Fill = Callable[[str], None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the library, and return its path. Skip without a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return str(path)


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Return a function that replaces the figures of the GPUs."""
    path = tmp_path / "gpus"
    monkeypatch.setenv("FAKE_NVML", str(path))

    def write(text: str) -> None:
        path.write_text(text)

    return write


def test_use_of_gpus_is_read(library: str, fill: Fill) -> None:
    fill(f"GPU-a 37 {GIB} {4 * GIB}\nGPU-b 0 0 {GIB}\n")
    readings = Nvml(library).read(["GPU-a", "GPU-b"])
    assert readings == {"GPU-a": GpuReading(37.0, 0.25), "GPU-b": GpuReading(0.0, 0.0)}


def test_lost_gpu_is_left_out(library: str, fill: Fill) -> None:
    fill(f"GPU-a 37 0 {GIB}\n")
    assert set(Nvml(library).read(["GPU-a", "GPU-b"])) == {"GPU-a"}


def test_gpu_without_a_figure_has_no_percentage(library: str, fill: Fill) -> None:
    fill(f"GPU-a -1 {GIB} {2 * GIB}\n")
    assert Nvml(library).read(["GPU-a"]) == {"GPU-a": GpuReading(None, 0.5)}


def test_mig_instance_has_its_own_memory_and_no_percentage(library: str, fill: Fill) -> None:
    fill(f"GPU-a -1 0 {40 * GIB}\nMIG-a -1 {GIB} {5 * GIB}\n")
    assert Nvml(library).read(["MIG-a"]) == {"MIG-a": GpuReading(None, 0.2)}


def test_nvidias_package_reads_the_same(
    library: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    pynvml = pytest.importorskip("pynvml")
    fill(f"GPU-a 64 {3 * GIB} {4 * GIB}\n")
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(library))
    device = pynvml.nvmlDeviceGetHandleByUUID("GPU-a")
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    percent = pynvml.nvmlDeviceGetUtilizationRates(device).gpu
    reading = GpuReading(float(percent), memory.used / memory.total)
    assert Nvml(library).read(["GPU-a"]) == {"GPU-a": reading}


def test_driver_that_was_reloaded_is_read_again(library: str, fill: Fill) -> None:
    reader = GpuReader(library)
    fill("")
    with pytest.raises(SlotsUnknown, match="none of the GPUs"):
        reader.read(["GPU-a"])
    fill(f"GPU-a 9 0 {GIB}\n")
    assert reader.read(["GPU-a"]) == {"GPU-a": GpuReading(9.0, 0.0)}
    assert not reader.is_slow


@pytest.mark.parametrize("has_driver", [False, True])
def test_machine_without_a_usable_library_uses_nvidia_smi(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_driver: bool,
) -> None:
    monkeypatch.delenv("FAKE_NVML", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-a, 40 %, 1024 MiB, 4096 MiB'\n")
    program.chmod(0o755)
    reader = GpuReader(library if has_driver else str(tmp_path / "missing.so"))
    assert reader.read(["GPU-a"]) == {"GPU-a": GpuReading(40.0, 0.25)}
    assert reader.is_slow


def test_listing_with_unknown_figures_is_parsed() -> None:
    listing = "GPU-a, [N/A], 0 MiB, 4096 MiB\nGPU-b, 5 %, [N/A], [N/A]\nno GPU\n\n"
    assert parse_smi(listing) == {"GPU-a": GpuReading(None, 0.0), "GPU-b": GpuReading(5.0, 0.0)}
