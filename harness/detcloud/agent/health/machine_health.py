"""The watch over the machine's GPUs and disk, and the examination of failed trials."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.agent.health.ballast import Ballast
from detcloud.agent.health.disk import disk_fault, has_filled_disk
from detcloud.agent.health.machine_fault import MachineFault
from detcloud.agent.slots import SlotsUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from detcloud.agent.slots import Slot

DISK_SECONDS = 10.0
KERNEL_LOG_SECONDS = 5.0
GPU_SECONDS = 300.0
EXAMINATION_SECONDS_MAX = 60.0
SMI_FAILURES_MAX = 3
"""The failures of nvidia-smi in a row after which the machine counts as faulty."""
SMI_FIELDS = "uuid,pci.bus_id,ecc.errors.uncorrected.volatile.total"


def _query_gpus() -> str:
    # Imported here to keep agents without GPUs small.
    from detcloud.agent.devices.nvidia import query_nvidia_smi

    return query_nvidia_smi(SMI_FIELDS)


def _list_devices() -> str:
    from detcloud.agent.devices.nvidia import list_devices

    return list_devices()


class MachineHealth:
    """The present faults of the machine.

    `poll` looks at the disk. A machine with GPUs has a thread, which `start` begins: it reads the
    kernel's log, and calls nvidia-smi every GPU_SECONDS and after failures of trials.
    """

    def __init__(
        self,
        work: Path,
        slots: Sequence[Slot],
        log_line: Callable[[str], None],
        on_change: Callable[[Sequence[MachineFault]], None],
        *,
        is_replaceable: bool = False,
        query_gpus: Callable[[], str] = _query_gpus,
        list_devices: Callable[[], str] = _list_devices,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the watch.

        Args:
            work: the agent's work directory.
            slots: the slots of the node.
            log_line: writes to the agent's log.
            on_change: called with all present faults after each change.
            is_replaceable: whether the provisioner replaces the machine. A fault of a GPU then
                closes the whole machine, because a replacement has all GPUs.
            query_gpus: returns the answer of nvidia-smi about GPUs. Raises SlotsUnknown.
            list_devices: returns nvidia-smi's list with MIG instances. Raises SlotsUnknown.
            clock: returns seconds.
        """
        self._work = work
        self._slots = slots
        self._log_line = log_line
        self._on_change = on_change
        self._is_replaceable = is_replaceable
        self._query_gpus = query_gpus
        self._list_devices = list_devices
        self._clock = clock
        self._has_gpus = any(slot.type == "cuda" for slot in slots)
        self._ballast = Ballast(work)
        self._disk_at = 0.0
        self._disk_reason = ""
        self._gpu_faults: list[MachineFault] = []
        self._gpus_looked_at = clock()
        self._smi_failures = 0
        self._xids: dict[str, int] = {}
        self._faults: list[MachineFault] = []
        self._lock = threading.Lock()
        self._is_asked = threading.Event()

    @property
    def faults(self) -> list[MachineFault]:
        """All present faults."""
        return list(self._faults)

    def start(self) -> None:
        """Watch the GPUs in a thread, which ends with the process. Do nothing without GPUs."""
        if self._has_gpus:
            threading.Thread(target=self._watch_gpus, name="gpu-health", daemon=True).start()

    def poll(self) -> None:
        """Look at the disk, unless the last look was within DISK_SECONDS."""
        now = self._clock()
        if now >= self._disk_at:
            self._disk_at = now + DISK_SECONDS
            self._look_at_disk()

    def examine(self, folder: Path, slots: Sequence[int], failed_at: float) -> str | None:
        """Return the fault of the machine by which a trial failed, or "".

        Return None while the answer is not known: the GPUs were not looked at since the failure.
        After EXAMINATION_SECONDS_MAX, the last look counts.

        Args:
            folder: the folder with the trial's files. A trial that has filled the disk has itself
                failed.
            slots: the ids of the trial's slots.
            failed_at: the time of the failure, by the clock of this object.
        """
        self._look_at_disk()
        if self._disk_reason and not has_filled_disk(folder):
            return self._disk_reason
        types = {slot.id: slot.type for slot in self._slots}
        if not any(types.get(slot) == "cuda" for slot in slots):
            return ""
        if self._gpus_looked_at <= failed_at:
            self._is_asked.set()
            if self._clock() < failed_at + EXAMINATION_SECONDS_MAX:
                return None
        return next((x.reason for x in self._gpu_faults if x.slot is None or x.slot in slots), "")

    def look_at_gpus(self) -> None:
        """Ask nvidia-smi about all GPUs. Several failures in a row are a fault of the machine."""
        # Imported here to keep agents without GPUs small.
        from detcloud.agent.health.gpus import find_gpu_faults, parse_gpu_states

        began = self._clock()
        try:
            states = parse_gpu_states(self._query_gpus())
            has_instances = any(slot.gpu for slot in self._slots)
            devices = self._list_devices() if has_instances else None
        except SlotsUnknown as error:
            self._smi_failures += 1
            if self._smi_failures >= SMI_FAILURES_MAX:
                self._gpu_faults = [MachineFault(None, str(error))]
        else:
            self._smi_failures = 0
            self._gpu_faults = find_gpu_faults(self._slots, states, self._xids, devices)
        self._gpus_looked_at = began
        self._update()

    def _look_at_disk(self) -> None:
        self._disk_reason = disk_fault(self._work, was_full=bool(self._disk_reason))
        if self._disk_reason:
            self._ballast.release()
        else:
            self._ballast.keep()
        self._update()

    def _update(self) -> None:
        """Combine the faults of disk and GPUs. Log and pass on a change."""
        with self._lock:
            disk = [MachineFault(None, self._disk_reason)] if self._disk_reason else []
            gpus = self._gpu_faults
            if self._is_replaceable:
                gpus = [fault._replace(slot=None) for fault in gpus]
            before, self._faults = self._faults, [*disk, *gpus]
            if self._faults == before:
                return
            for fault in self._faults:
                if fault not in before:
                    self._log_line(f"this machine takes no work, or less: {fault.reason}")
            self._on_change(self._faults)

    def _watch_gpus(self) -> None:
        from detcloud.agent.health.gpus import KernelLog

        kernel_log = KernelLog()
        due_at = 0.0
        while True:
            is_asked = self._is_asked.wait(KERNEL_LOG_SECONDS)
            self._is_asked.clear()
            xids = kernel_log.read_xids()
            for bus, xid in xids:
                self._xids.setdefault(bus, xid)
            now = self._clock()
            if xids or is_asked or now >= due_at:
                due_at = now + GPU_SECONDS
                try:
                    self.look_at_gpus()
                except Exception as error:
                    # The thread must go on, because failed trials wait for it.
                    self._log_line(f"the GPUs could not be looked at: {error!r}")
