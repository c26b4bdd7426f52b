"""The thread that samples the slots of all running allocations."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from detcloud.agent.slots import SlotsUnknown, usable_cores
from detcloud.agent.usage.process_use import cpu_sample, machine_memory_bytes, read_totals
from detcloud.agent.usage.use_sums import LOW_PERCENT, SlotSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from detcloud.agent.allocation.allocation import Allocation
    from detcloud.agent.node import Node
    from detcloud.agent.slots import Slot
    from detcloud.agent.usage.nvml import GpuReading
    from detcloud.agent.usage.process_use import ProcessTotals

TICK_SECONDS = 2.0
AGE_SHARE = 8
"""Samples of a young allocation are due after this part of its age."""
GPU_SECONDS = 10.0
CPU_SECONDS = 30.0
SMI_SECONDS = 60.0
CORE_SHARE = 0.001
"""The share of a core that samples may take in the long run."""
BURST_SECONDS = 0.1
"""The processor time that samples may take at once, for example of several young allocations."""


class GpuReadings(Protocol):
    """Reads the use of GPUs."""

    @property
    def is_slow(self) -> bool:
        """Whether a reading costs much."""

    def read(self, uuids: Iterable[str]) -> Mapping[str, GpuReading]:
        """Return the use of GPUs by UUID. Raise SlotsUnknown if no GPU answers."""


@dataclass
class _WatchedRun:
    """An allocation that is sampled."""

    began: float
    """The time of the first look."""
    sampled: float
    """The time of the last sample."""
    totals: ProcessTotals | None = None
    """The sums over the processes at the last sample."""


class UseSampler:
    """Samples running allocations: often at the start, and later every GPU_SECONDS or CPU_SECONDS.

    A run whose GPUs compute also counts as used for its `idle_timeout`. If no GPU can be read,
    these runs count as used, so that no computation is ended by mistake.
    """

    def __init__(
        self,
        node: Node,
        slots: Sequence[Slot],
        log_line: Callable[[str], None],
        gpus: GpuReadings | None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Create the sampler. `start` begins to sample.

        Args:
            node: the node with the allocations.
            slots: the slots of the node.
            log_line: writes to the agent's log.
            gpus: reads GPUs. None on a node without GPUs, and on a Mac.
            clock: returns the present time in seconds, of a clock that nobody sets.
            cpu_clock: returns the processor time of this thread in seconds.
        """
        self._node = node
        self._log_line = log_line
        self._gpus = gpus
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._budget_seconds = BURST_SECONDS
        self._looked = clock()
        self._cores_per_slot = usable_cores() / max(1, len(slots))
        self._memory_per_slot = machine_memory_bytes() / max(1, len(slots))
        self._watched: dict[str, _WatchedRun] = {}
        self._trouble = ""

    def start(self) -> None:
        """Sample every TICK_SECONDS in a thread, which ends with the process."""
        threading.Thread(target=self._run, name="use-sampler", daemon=True).start()

    def look(self) -> None:
        """Sample the running allocations with a due sample.

        Do nothing while earlier samples have used up the processor time of CORE_SHARE.
        """
        now, began = self._clock(), self._cpu_clock()
        earned = CORE_SHARE * max(0.0, now - self._looked)
        self._budget_seconds = min(BURST_SECONDS, self._budget_seconds + earned)
        self._looked = now
        if self._budget_seconds <= 0:
            return
        self._sample(now)
        self._budget_seconds -= self._cpu_clock() - began

    def _sample(self, now: float) -> None:
        running = {
            allocation.allocation: allocation
            for allocation in self._node.allocations()
            if allocation.is_running and allocation.use.slots
        }
        self._watched = {name: self._watched[name] for name in running if name in self._watched}
        on_gpus: dict[str, tuple[Allocation, set[str]]] = {}
        for name, allocation in running.items():
            watched = self._watched.get(name)
            if watched is not None and not self._is_due(watched, allocation, now):
                continue
            gpus = {slot.uuid for slot in self._slots_of(allocation) if slot.type != "cpu"}
            if gpus:
                on_gpus[name] = allocation, gpus
            else:
                self._sample_processes(allocation, now)
        if on_gpus:
            self._sample_gpus(on_gpus, now)

    def _slots_of(self, allocation: Allocation) -> list[Slot]:
        return self._node.find_slots(allocation.use.slots)

    def _is_due(self, watched: _WatchedRun, allocation: Allocation, now: float) -> bool:
        longest = CPU_SECONDS
        if self._gpus is not None:
            is_slow = self._gpus.is_slow and not allocation.has_idle_timeout
            longest = SMI_SECONDS if is_slow else GPU_SECONDS
        age = now - watched.began
        # The clock's ticks are not exact.
        return now - watched.sampled >= min(longest, max(TICK_SECONDS, age / AGE_SHARE)) - 0.1

    def _sample_processes(self, allocation: Allocation, now: float) -> None:
        """Add the use of the cores since the last sample. The first sample only begins to count."""
        name = allocation.allocation
        totals = read_totals(self._node.allocation_processes(name))
        watched = self._watched.setdefault(name, _WatchedRun(now, now))
        before, watched.totals = watched.totals, totals
        elapsed_ms = round((now - watched.sampled) * 1000)
        watched.sampled = now
        if before is None or totals is None or elapsed_ms <= 0:
            return
        count = len(allocation.use.slots)
        share = count / allocation.use.sharers
        cores, memory = self._cores_per_slot * share, self._memory_per_slot * share
        sample = cpu_sample(before, totals, elapsed_ms, cores, memory)
        allocation.use.add([sample] * count, elapsed_ms, round(now * 1000))

    def _sample_gpus(
        self, allocations: Mapping[str, tuple[Allocation, set[str]]], now: float
    ) -> None:
        """Add the use of the GPUs of the allocations, and note the use of computing runs."""
        uuids = set().union(*(gpus for _, gpus in allocations.values()))
        readings: Mapping[str, GpuReading] = {}
        try:
            if self._gpus is not None:
                readings = self._gpus.read(uuids)
        except SlotsUnknown as error:
            self._report(str(error))
        else:
            self._trouble = ""
        for name, (allocation, gpus) in allocations.items():
            own = [readings[uuid] for uuid in sorted(gpus) if uuid in readings]
            if not own or any(one.percent is None or one.percent >= LOW_PERCENT for one in own):
                allocation.note_use()
            watched = self._watched.setdefault(name, _WatchedRun(now, now))
            # A sample says nothing about a long gap, for example of a suspended machine.
            elapsed = min(now - watched.sampled, 2 * SMI_SECONDS)
            watched.sampled = now
            samples = [
                SlotSample(one.percent, one.memory) for one in own if one.percent is not None
            ]
            if samples and elapsed > 0:
                allocation.use.add(samples, round(elapsed * 1000), round(now * 1000))

    def _run(self) -> None:
        while True:
            time.sleep(TICK_SECONDS)
            try:
                self.look()
            except Exception as error:
                # Without the thread, computing runs would come to the idle timeout.
                self._report(repr(error))

    def _report(self, trouble: str) -> None:
        """Write a failure to the log, unless the last look failed alike."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._log_line(f"the use of slots is unknown, so that no run counts as idle: {trouble}")
