"""NVIDIA GPUs and MIG instances as slots, from the output of nvidia-smi of a real A100 machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from detcloud.agent.devices.nvidia import nvidia_slots, parse_gpus
from detcloud.agent.slots import Slot, SlotsUnknown

A100 = "NVIDIA A100-SXM4-40GB"
QUERY = f"""\
0, GPU-a0, {A100}, 40960 MiB, Enabled
1, GPU-b1, {A100}, 40960 MiB, Disabled
2, GPU-c2, {A100}, 40960 MiB, Enabled
"""
LISTING = f"""\
GPU 0: {A100} (UUID: GPU-a0)
  MIG 3g.20gb     Device  0: (UUID: MIG-a00)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-a01)
GPU 1: {A100} (UUID: GPU-b1)
GPU 2: {A100} (UUID: GPU-c2)
"""
# The names of instances before version 470 of the driver.
OLD_LISTING = LISTING.replace("MIG-a00", "MIG-GPU-a0/1/0").replace("MIG-a01", "MIG-GPU-a0/2/0")


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs an nvidia-smi with these answers on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(query: str, listing: str = "", *, knows_mig: bool = True) -> None:
        (tmp_path / "query").write_text(query)
        (tmp_path / "listing").write_text(listing)
        refusal = "" if knows_mig else '*mig.mode*) echo "is not a valid field" >&2; exit 2;;\n'
        (tmp_path / "nvidia-smi").write_text(
            f'#!/bin/sh\ncase "$1" in\n-L) cat {tmp_path}/listing;;\n{refusal}'
            f"*) cat {tmp_path}/query;;\nesac\n"
        )
        (tmp_path / "nvidia-smi").chmod(0o755)

    return install


def uuids(environment: dict[str, str] | None = None) -> list[str]:
    return [slot.uuid for slot in nvidia_slots(environment=environment or {})]


def test_gpus_have_the_numbers_of_nvidia_smi(smi: Callable[..., None]) -> None:
    smi("0, GPU-a, H100, 81559 MiB, Disabled\n1, GPU-b, H100, 81559 MiB, [N/A]\n")
    assert nvidia_slots(environment={}) == [
        Slot(0, "cuda", "GPU-a", "H100", 81559),
        Slot(1, "cuda", "GPU-b", "H100", 81559),
    ]
    # A hidden GPU keeps its number.
    assert nvidia_slots(environment={"CUDA_VISIBLE_DEVICES": "1"})[0].id == 1


def test_gpu_in_mig_mode_is_no_slot(smi: Callable[..., None]) -> None:
    smi(QUERY, LISTING)
    assert nvidia_slots(environment={}) == [
        Slot(0, "cuda", "MIG-a00", f"{A100} MIG 3g.20gb", 20 * 1024, "GPU-a0"),
        Slot(1, "cuda", "MIG-a01", f"{A100} MIG 1g.5gb+me", 5 * 1024, "GPU-a0"),
        Slot(2, "cuda", "GPU-b1", A100, 40960),
    ]


def test_instances_of_old_drivers_are_slots(smi: Callable[..., None]) -> None:
    smi(QUERY, OLD_LISTING)
    assert uuids() == ["MIG-GPU-a0/1/0", "MIG-GPU-a0/2/0", "GPU-b1"]


def test_driver_without_mig_is_asked_again(smi: Callable[..., None]) -> None:
    smi("0, GPU-a, Tesla K80\n", knows_mig=False)
    assert nvidia_slots(environment={}) == [Slot(0, "cuda", "GPU-a", "Tesla K80")]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ["GPU-b1"]),
        ("1,0", ["MIG-a00", "MIG-a01", "GPU-b1"]),
        ("GPU-a", ["MIG-a00", "MIG-a01"]),
        ("MIG-a01", ["MIG-a01"]),
        ("MIG-a0", []),
        ("MIG-a01,GPU-b1", ["MIG-a01"]),
        ("", []),
        ("-1", []),
        # The GPU has no instance.
        ("2", []),
    ],
)
def test_agents_variable_limits_the_slots(
    smi: Callable[..., None], visible: str, expected: list[str]
) -> None:
    smi(QUERY, LISTING)
    assert uuids({"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_numbers_of_different_gpus_need_their_order(smi: Callable[..., None]) -> None:
    smi("0, GPU-a, T4, 1 MiB, [N/A]\n1, GPU-b, H100, 1 MiB, Disabled\n")
    with pytest.raises(SlotsUnknown, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        uuids({"CUDA_VISIBLE_DEVICES": "0"})
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert uuids(by_bus) == ["GPU-a"]
    assert uuids({"CUDA_VISIBLE_DEVICES": "GPU-b"}) == ["GPU-b"]


def test_other_output_is_an_error() -> None:
    with pytest.raises(SlotsUnknown, match="No devices"):
        parse_gpus("No devices were found")
