"""The sampler: real processes, GPUs with given figures, and the idle timeout of runs with GPUs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from detcloud.agent.node import Node
from detcloud.agent.slots import Slot, SlotsUnknown, usable_cores
from detcloud.agent.usage import use_sampler
from detcloud.agent.usage.nvml import GpuReading
from detcloud.agent.usage.process_use import ProcessTotals, cpu_sample, read_totals
from detcloud.agent.usage.use_monitor import UseMonitor
from detcloud.agent.usage.use_sampler import UseSampler
from detcloud.agent.usage.use_sums import UseSums

BUSY_CODE = "while True: pass"
GPUS = [Slot(n, "cuda", f"GPU-{n}", "H200") for n in range(2)]
CPUS = [Slot(n, "cpu", f"cpu-{n}", "CPU") for n in range(2)]


class FakeAllocation:
    """A running allocation with the parts that the sampler uses."""

    def __init__(self, name: str, slots: list[int], *, has_idle_timeout: bool = False) -> None:
        self.allocation = name
        self.use = UseMonitor(slots)
        self.is_running = True
        self.has_idle_timeout = has_idle_timeout
        self.noted = 0

    def note_use(self) -> None:
        self.noted += 1

    @property
    def sums(self) -> UseSums:
        return self.use._sums


class FakeNode:
    def __init__(self, slots: list[Slot], allocations: list[FakeAllocation]) -> None:
        self.slots, self.running = slots, allocations
        self.processes: list[int] = []

    def allocations(self) -> list[FakeAllocation]:
        return self.running

    def find_slots(self, ids: Iterable[int]) -> list[Slot]:
        return [self.slots[slot] for slot in ids]

    def allocation_processes(self, name: str) -> list[int]:
        return self.processes


class FakeGpus:
    def __init__(self, **readings: tuple[float | None, float]) -> None:
        self.readings = {f"GPU-{name[1:]}": GpuReading(*one) for name, one in readings.items()}
        self.calls = 0
        self.is_slow = False
        self.trouble = ""

    def read(self, uuids: Iterable[str]) -> Mapping[str, GpuReading]:
        self.calls += 1
        if self.trouble:
            raise SlotsUnknown(self.trouble)
        return {uuid: self.readings[uuid] for uuid in uuids if uuid in self.readings}


class Watch:
    """A sampler with a clock that the test sets."""

    def __init__(self, node: FakeNode, gpus: FakeGpus | None) -> None:
        self.now = 100.0
        self.cpu = 0.0
        self.lines: list[str] = []
        self.sampler = UseSampler(
            cast(Node, node), node.slots, self.lines.append, gpus, lambda: self.now, self.use_cpu
        )

    def use_cpu(self) -> float:
        return self.cpu

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.sampler.look()
            self.now += use_sampler.TICK_SECONDS


class TestGpus:
    def test_each_gpu_counts_its_own_use(self) -> None:
        allocation = FakeAllocation("1.1", [0, 1])
        gpus = FakeGpus(g0=(80, 0.5), g1=(2, 0.25))
        Watch(FakeNode(GPUS, [allocation]), gpus).run(202)
        sums = allocation.sums
        assert 380_000 <= sums.measured_ms <= 400_000
        assert sums.busy_ms == pytest.approx(sums.measured_ms * 0.41, abs=100)
        assert sums.low_ms == sums.measured_ms // 2
        assert sums.memory_ms == pytest.approx(sums.measured_ms * 0.375, abs=100)

    def test_samples_become_rarer(self) -> None:
        gpus = FakeGpus(g0=(80, 0.5))
        Watch(FakeNode(GPUS, [FakeAllocation("1.1", [0])]), gpus).run(3_600)
        assert 350 <= gpus.calls <= 390

    def test_slow_readings_are_rare_without_an_idle_timeout(self) -> None:
        calls = []
        for has_idle_timeout in (False, True):
            gpus = FakeGpus(g0=(80, 0.5))
            gpus.is_slow = True
            allocation = FakeAllocation("1.1", [0], has_idle_timeout=has_idle_timeout)
            Watch(FakeNode(GPUS, [allocation]), gpus).run(3_600)
            calls.append(gpus.calls)
        assert calls[0] < 90 < 350 < calls[1]

    def test_costly_samples_take_a_thousandth_of_a_core(self) -> None:
        node, gpus = FakeNode(GPUS, [FakeAllocation("1.1", [0])]), FakeGpus(g0=(80, 0.5))
        watch = Watch(node, gpus)

        def read_slowly(uuids: Iterable[str]) -> Mapping[str, GpuReading]:
            gpus.calls += 1
            watch.cpu += 0.05
            return gpus.readings

        gpus.read = read_slowly  # type: ignore[method-assign]
        watch.run(3_600)
        assert watch.cpu < 3_600 * use_sampler.CORE_SHARE + 0.2
        assert gpus.calls > 60
        measured_ms = node.running[0].sums.measured_ms
        assert measured_ms > 3_400_000

    def test_nothing_is_read_without_a_running_allocation(self) -> None:
        gpus, allocation = FakeGpus(), FakeAllocation("1.1", [0])
        allocation.is_running = False
        Watch(FakeNode(GPUS, [allocation, FakeAllocation("2.1", [])]), gpus).run(60)
        assert gpus.calls == 0

    def test_gap_of_a_suspended_machine_does_not_count(self) -> None:
        allocation, gpus = FakeAllocation("1.1", [0]), FakeGpus(g0=(0, 0))
        watch = Watch(FakeNode(GPUS, [allocation]), gpus)
        watch.run(4)
        watch.now += 36_000
        watch.run(4)
        assert allocation.sums.measured_ms < 130_000

    @pytest.mark.parametrize(
        ("percent", "is_used"), [(0, False), (4, False), (5, True), (100, True), (None, True)]
    )
    def test_run_with_a_computing_gpu_is_used(self, percent: int | None, is_used: bool) -> None:
        allocation, other = FakeAllocation("1.1", [0]), FakeAllocation("2.1", [1])
        gpus = FakeGpus(g0=(percent, 0), g1=(0, 0))
        Watch(FakeNode(GPUS, [allocation, other]), gpus).run(2)
        assert (allocation.noted, other.noted) == (int(is_used), 0)

    def test_unreadable_gpus_count_as_use_and_are_logged_once(self) -> None:
        allocation, gpus = FakeAllocation("1.1", [0]), FakeGpus(g0=(0, 0))
        gpus.trouble = "no driver"
        watch = Watch(FakeNode(GPUS, [allocation]), gpus)
        watch.run(10)
        assert allocation.noted == gpus.calls > 1
        assert len(watch.lines) == 1
        assert allocation.sums == UseSums()
        gpus.trouble = ""
        watch.run(20)
        gpus.trouble = "no driver"
        watch.run(20)
        assert len(watch.lines) == 2


@pytest.fixture
def busy_process() -> Iterator[int]:
    """Run a program that computes, and return its process id."""
    process = subprocess.Popen([sys.executable, "-c", BUSY_CODE])
    yield process.pid
    process.kill()
    process.wait()


class TestProcesses:
    def test_computing_process_has_use_and_sleeping_process_none(self, busy_process: int) -> None:
        with subprocess.Popen(["sleep", "60"]) as sleeping:
            before = [read_totals([busy_process]), read_totals([sleeping.pid])]
            time.sleep(0.6)
            after = [read_totals([busy_process]), read_totals([sleeping.pid])]
            sleeping.kill()
        samples = [
            cpu_sample(first, last, 600, 1.0, 1 << 30)
            for first, last in zip(before, after, strict=True)
            if first is not None and last is not None
        ]
        assert samples[0].percent > 20
        assert samples[0].memory > 0
        assert samples[1].percent < 5

    def test_time_of_an_ended_child_is_kept(self) -> None:
        code = (
            "import subprocess, sys; print(flush=True); sys.stdin.readline()\n"
            "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.3:"
            " pass']); print(flush=True); sys.stdin.readline()"
        )
        pipe, argv = subprocess.PIPE, [sys.executable, "-c", code]
        with subprocess.Popen(argv, text=True, stdin=pipe, stdout=pipe) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            before = read_totals([process.pid])
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            after = read_totals([process.pid])
            process.communicate("\n")
        assert before is not None
        assert after is not None
        assert cpu_sample(before, after, 1_000, 1.0, 0).percent >= 25

    def test_sampler_measures_a_share_of_the_cores(
        self, busy_process: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = FakeNode(CPUS, [FakeAllocation("1.1", [0])])
        node.processes = [busy_process]
        watch = Watch(node, None)
        watch.sampler.look()
        watch.now += 2.0
        cores = usable_cores() / 2
        totals = read_totals(node.processes)
        assert totals is not None
        # A core that computes for half of the two seconds, in ticks of 10 ms.
        later = ProcessTotals(totals.ticks + 100, totals.memory_bytes)
        monkeypatch.setattr(use_sampler, "read_totals", lambda _: later)
        watch.sampler.look()
        [allocation] = node.running
        assert allocation.sums.measured_ms == 2_000
        expected = min(1.0, 1.0 / (2.0 * cores))
        assert allocation.sums.busy_ms == pytest.approx(2_000 * expected, rel=0.3)

    def test_allocation_without_processes_is_not_measured(self) -> None:
        node = FakeNode(CPUS, [FakeAllocation("1.1", [0])])
        Watch(node, None).run(60)
        assert node.running[0].sums == UseSums()

    def test_lost_time_is_never_negative(self) -> None:
        sample = cpu_sample(ProcessTotals(500, 1), ProcessTotals(100, 1), 1_000, 1.0, 0)
        assert sample.percent == 0

    def test_malformed_records_are_skipped(self, tmp_path: Path) -> None:
        for name, text in (("1", "1 (x) S"), ("2", "2 (a b) c) S " + "1 " * 40)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "stat").write_text(text)
        totals = read_totals([1, 2, 3], tmp_path)
        assert totals is not None
        assert totals.ticks == 4
        assert read_totals([3], tmp_path) is None
