"""The watch over the machine, and the examination of failed trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from detcloud.agent.health import machine_health
from detcloud.agent.health.ballast import FILE_BYTES, FILES
from detcloud.agent.health.disk import disk_fault, has_filled_disk
from detcloud.agent.health.machine_fault import MachineFault
from detcloud.agent.health.machine_health import (
    EXAMINATION_SECONDS_MAX,
    SMI_FAILURES_MAX,
    MachineHealth,
)
from detcloud.agent.slots import Slot, SlotsUnknown

GPUS = [Slot(0, "cuda", "GPU-a", "A100"), Slot(1, "cuda", "GPU-b", "A100")]
CPUS = [Slot(0, "cpu", "cpu-0", "CPU")]
BOTH = "GPU-a, 00000000:3B:00.0, 0\nGPU-b, 00000000:AF:00.0, 0\n"
FIRST = BOTH.splitlines()[0]


class Machine:
    """A machine with a clock and with answers of nvidia-smi that a test sets."""

    def __init__(
        self, work: Path, slots: Sequence[Slot] = GPUS, *, is_replaceable: bool = False
    ) -> None:
        self.now = 100.0
        self.listing = BOTH
        self.devices = ""
        self.changes: list[list[MachineFault]] = []
        self.health = MachineHealth(
            work,
            slots,
            lambda line: None,
            lambda faults: self.changes.append(list(faults)),
            is_replaceable=is_replaceable,
            query_gpus=self.query,
            list_devices=lambda: self.devices,
            clock=lambda: self.now,
        )

    def query(self) -> str:
        if not self.listing:
            raise SlotsUnknown("nvidia-smi failed: no devices")
        return self.listing


class Disk(NamedTuple):
    """The fields of `os.statvfs` that count."""

    f_bavail: int
    f_blocks: int = 10**6
    f_frsize: int = 4096


def fill_disk(monkeypatch: pytest.MonkeyPatch, free_mib: int) -> None:
    disk = Disk(free_mib * 256)
    monkeypatch.setattr("os.statvfs", lambda path: disk)


def test_lost_gpu_is_reported_once_and_comes_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.listing = FIRST
    machine.health.look_at_gpus()
    machine.health.look_at_gpus()
    lost = MachineFault(1, "A100 GPU-b: nvidia-smi no longer lists the GPU")
    assert machine.changes == [[lost]]
    machine.listing = BOTH
    machine.health.look_at_gpus()
    assert machine.changes[1:] == [[]]


def test_destroyed_mig_instance_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [Slot(0, "cuda", "MIG-a", "A100 MIG 1g.5gb", 5120, "GPU-a")])
    machine.devices = "  MIG 1g.5gb  Device 0: (UUID: MIG-a)\n"
    machine.health.look_at_gpus()
    assert machine.health.faults == []
    machine.devices = ""
    machine.health.look_at_gpus()
    assert [fault.slot for fault in machine.health.faults] == [0]


def test_fault_closes_a_replaceable_machine_as_a_whole(tmp_path: Path) -> None:
    machine = Machine(tmp_path, is_replaceable=True)
    machine.listing = FIRST
    machine.health.look_at_gpus()
    [[fault]] = machine.changes
    assert fault.slot is None


def test_failing_smi_is_a_fault_after_several_failures(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.listing = ""
    for number in range(1, SMI_FAILURES_MAX + 1):
        machine.health.look_at_gpus()
        assert len(machine.changes) == (number == SMI_FAILURES_MAX)
    assert machine.health.faults == [MachineFault(None, "nvidia-smi failed: no devices")]


def test_failed_trial_waits_for_a_look_at_the_gpus(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.listing, machine.now = FIRST, 200.0
    assert machine.health.examine(tmp_path, (1,), 200.0) is None
    machine.now = 201.0
    machine.health.look_at_gpus()
    reason = machine.health.examine(tmp_path, (0, 1), 200.0)
    assert reason == "A100 GPU-b: nvidia-smi no longer lists the GPU"
    # The trial on the healthy GPU has itself failed.
    assert machine.health.examine(tmp_path, (0,), 200.0) == ""


def test_examination_ends_without_an_answer(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.health.examine(tmp_path, (0,), machine.now) is None
    machine.now += EXAMINATION_SECONDS_MAX
    assert machine.health.examine(tmp_path, (0,), 100.0) == ""


def test_trial_without_gpus_is_examined_at_once(tmp_path: Path) -> None:
    assert Machine(tmp_path, CPUS).health.examine(tmp_path, (0,), 0.0) == ""
    assert Machine(tmp_path).health.examine(tmp_path, (), 0.0) == ""


def test_full_disk_closes_the_machine_until_space_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundredth of this disk is 40 MB.
    machine = Machine(tmp_path, CPUS)
    for free_mib, is_full in ((60, False), (30, True), (50, True), (90, False)):
        fill_disk(monkeypatch, free_mib)
        machine.now += machine_health.DISK_SECONDS
        machine.health.poll()
        assert bool(machine.health.faults) is is_full
    [[fault], []] = machine.changes
    assert fault == MachineFault(
        None, f"the disk of {tmp_path} is full: it needs 39.1 MiB of free space"
    )


def test_space_for_records_is_released_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, ballast = Machine(tmp_path, CPUS), tmp_path / "ballast"

    def look(free_mib: int | None) -> int:
        """Look at the disk, and return the number of files with kept space."""
        machine.now += machine_health.DISK_SECONDS
        with monkeypatch.context() as patch:
            if free_mib is not None:
                fill_disk(patch, free_mib)
            machine.health.poll()
        return len(list(ballast.iterdir()))

    assert look(None) == FILES
    assert all(file.stat().st_blocks * 512 >= FILE_BYTES for file in ballast.iterdir())
    # A file at a time, and none while a little space is free.
    assert [look(0), look(0), look(1)] == [FILES - 1, FILES - 2, FILES - 2]
    assert look(None) == FILES


def test_disk_is_looked_at_in_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, CPUS)
    machine.health.poll()
    fill_disk(monkeypatch, 1)
    machine.health.poll()
    assert machine.health.faults == []


@pytest.mark.parametrize(("own_mib", "is_own"), [(0, False), (2, False), (30, True)])
def test_trial_that_has_filled_the_disk_has_itself_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_mib: int, *, is_own: bool
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data").write_bytes(b"x" * (own_mib << 20))
    fill_disk(monkeypatch, 20)
    assert has_filled_disk(tmp_path) is is_own
    reason = Machine(tmp_path, CPUS).health.examine(tmp_path, (0,), 0.0)
    assert bool(reason) is not is_own


def test_unreadable_folder_has_no_fault(tmp_path: Path) -> None:
    assert disk_fault(tmp_path / "missing") == ""
    assert not has_filled_disk(tmp_path / "missing")
