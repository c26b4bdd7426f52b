"""Faults of GPUs, from nvidia-smi and the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detcloud.agent.health.gpus import (
    FATAL_XIDS,
    KernelLog,
    bus_address,
    find_gpu_faults,
    parse_gpu_states,
    parse_xid,
)
from detcloud.agent.health.machine_fault import MachineFault
from detcloud.agent.slots import Slot

SLOTS = [Slot(0, "cuda", "GPU-a", "A100"), Slot(1, "cuda", "GPU-b", "A100")]
HEALTHY = "GPU-a, 00000000:3B:00.0, 0\nGPU-b, 00000000:AF:00.0, [N/A]\n"


def faults_of(listing: str, xids: dict[str, int] | None = None) -> list[MachineFault]:
    return find_gpu_faults(SLOTS, parse_gpu_states(listing), xids or {})


def test_healthy_gpus_have_no_faults() -> None:
    assert faults_of(HEALTHY) == []
    assert find_gpu_faults([Slot(0, "cpu", "cpu-0", "CPU")], {}, {}) == []


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        (HEALTHY.splitlines()[0], "nvidia-smi no longer lists the GPU"),
        (HEALTHY.replace("[N/A]", "3"), "uncorrectable memory errors (ECC)"),
        (HEALTHY.replace("[N/A]", "[GPU requires reset]"), "nvidia-smi reports GPU requires reset"),
        (HEALTHY.replace("[N/A]", "[Unknown Error]"), "nvidia-smi reports Unknown Error"),
    ],
)
def test_broken_gpu_is_found(listing: str, reason: str) -> None:
    assert faults_of(listing) == [MachineFault(1, f"A100 GPU-b: {reason}")]


def test_fatal_xid_marks_the_gpu_at_its_address() -> None:
    found = parse_xid("4,1,2,-;NVRM: Xid (PCI:0000:af:00): 79, pid=1, GPU has fallen off the bus.")
    assert found == ("0000:af:00", 79)
    [fault] = faults_of(HEALTHY, dict([found]))
    assert fault == MachineFault(1, "A100 GPU-b: Xid 79, the GPU has fallen off the bus")


@pytest.mark.parametrize("number", [13, 31, 43, 45, 94])
def test_xids_of_programs_are_ignored(number: int) -> None:
    assert number not in FATAL_XIDS
    assert parse_xid(f"NVRM: Xid (PCI:0000:af:00): {number}, pid=7") is None
    assert parse_xid("usb 1-1: new device") is None


def test_addresses_of_both_programs_are_equal() -> None:
    assert bus_address("00000000:3B:00.0") == bus_address("0000:3b:00") == "0000:3b:00"
    assert bus_address("x") == ""


def test_kernel_log_is_read_from_the_start_of_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("NVRM: Xid (PCI:0000:01:00): 79, old\n")
    log = KernelLog(str(path))
    assert log.read_xids() == []
    with path.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:02:00): 48, new\nNVRM: Xid (PCI:0000:02:00): 31, x\n")
    assert log.read_xids() == [("0000:02:00", 48)]


def test_unreadable_kernel_log_is_empty(tmp_path: Path) -> None:
    assert KernelLog(str(tmp_path / "missing")).read_xids() == []


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log is not readable")
def test_kernel_log_of_this_machine_is_read() -> None:
    assert isinstance(KernelLog().read_xids(), list)


INSTANCES = [
    Slot(0, "cuda", "MIG-a0", "A100 MIG 3g.20gb", 20480, "GPU-a"),
    Slot(1, "cuda", "MIG-a1", "A100 MIG 3g.20gb", 20480, "GPU-a"),
    Slot(2, "cuda", "GPU-b", "A100", 40960),
]
LISTING = "GPU 0: A100 (UUID: GPU-a)\n  MIG 3g.20gb  Device 0: (UUID: MIG-a0)\n"


def test_fault_of_a_gpu_closes_all_its_instances() -> None:
    found = parse_xid("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 95, pid=1, uncontained")
    assert found == ("0000:3b:00", 95)
    faults = find_gpu_faults(INSTANCES, parse_gpu_states(HEALTHY), dict([found]))
    assert [fault.slot for fault in faults] == [0, 1]


def test_destroyed_instance_is_a_fault() -> None:
    (fault,) = find_gpu_faults(INSTANCES, parse_gpu_states(HEALTHY), {}, LISTING)
    assert fault.slot == 1
    assert fault.reason.endswith("no longer lists the MIG instance; restart the agent")
    assert find_gpu_faults(INSTANCES, parse_gpu_states(HEALTHY), {}) == []
