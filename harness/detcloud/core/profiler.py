"""Measurements of the machine that a trial runs on: processors, memory, disks, network and GPUs.

A thread samples what Linux counts in /proc and, where NVIDIA's library is installed, the GPUs.
Averages over some samples are reported as metrics of the groups cpu, memory, disk, network and gpu,
whose steps are seconds since 1970. Nothing here stops a training: what cannot be read is left out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcloud.shared.errors import InvalidValue
from detcloud.shared.trial_directory import Reporter

Metrics = dict[str, float]
Counters = Mapping[str, float]

SECTOR_BYTES = 512
INTERVAL_SECONDS_MIN = 0.1
_GIBIBYTE = 1 << 30


class ProfilerContext:
    """Measures the machine, `on` demand until `off`; of several, each by its first process."""

    def __init__(self, report: Reporter, *, is_active: bool, proc: Path = Path("/proc")) -> None:
        """Without `is_active`, as in another process than a node's first, nothing is measured."""
        self._report = report
        self._is_active = is_active
        self._proc = proc
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start_measuring(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Measure every `sampling_interval` seconds, and report the mean of so many samples.

        Raises InvalidValue for an interval below 0.1, and unless a report has a whole number of
        samples, at least one.
        """
        if not INTERVAL_SECONDS_MIN <= sampling_interval < threading.TIMEOUT_MAX:
            raise InvalidValue(
                f"sampling_interval is {sampling_interval}: expected at least "
                f"{INTERVAL_SECONDS_MIN} seconds"
            )
        if not isinstance(samples_per_report, int) or samples_per_report < 1:
            raise InvalidValue(
                f"samples_per_report is {samples_per_report!r}: expected an int of at least 1"
            )
        if not self._is_active or self._thread is not None:
            return
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._measure, args=(sampling_interval, samples_per_report), daemon=True
        )
        self._thread.start()

    def stop_measuring(self) -> None:
        """Stop measuring, and report the mean of the samples since the last report."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    # Determined's names.
    on, off = start_measuring, stop_measuring

    def _measure(self, interval: float, samples_per_report: int) -> None:
        try:
            sampler = Sampler(self._proc, read_gpus=gpu_reader())
            samples: list[dict[str, Metrics]] = []
            while not self._stopping.wait(interval):
                samples.append(sampler.sample(time.monotonic()))
                if len(samples) == samples_per_report:
                    self._report_mean(samples)
                    samples = []
            # All that there is of a short trial.
            if samples:
                self._report_mean(samples)
        except Exception as error:
            print(f"[detcloud] measuring the machine has stopped: {error!r}", file=sys.stderr)

    def _report_mean(self, samples: list[dict[str, Metrics]]) -> None:
        now = int(time.time())
        for group, metrics in mean_of_samples(samples).items():
            self._report("metrics", group=group, steps_completed=now, metrics=metrics)


class Sampler:
    """Reads the counters of a machine; rates are those since the sample before."""

    def __init__(
        self, proc: Path, read_gpus: Callable[[], Metrics] = dict, start: float | None = None
    ) -> None:
        self._proc = proc
        self._read_gpus = read_gpus
        self._before = self._counters()
        self._before_at = time.monotonic() if start is None else start

    def sample(self, now: float) -> dict[str, Metrics]:
        """The metrics by group at monotonic time `now`, in percent, GiB and bytes per second."""
        counters, seconds = self._counters(), max(now - self._before_at, 1e-3)
        grown = {name: counters[name] - self._before.get(name, 0.0) for name in counters}
        self._before, self._before_at = counters, now
        groups = {
            "cpu": _processor_metrics(grown),
            "memory": self._memory_metrics(),
            "disk": _rates(grown, seconds, "disk_"),
            "network": _rates(grown, seconds, "net_"),
            "gpu": self._read_gpus(),
        }
        return {group: metrics for group, metrics in groups.items() if metrics}

    def _counters(self) -> Counters:
        return {
            **_processor_counters(self._read("stat")),
            **_disk_counters(self._read("diskstats")),
            **_network_counters(self._read("net/dev")),
        }

    def _memory_metrics(self) -> Metrics:
        for line in self._read("meminfo"):
            if line.startswith("MemAvailable:"):
                return {"memory_free": int(line.split()[1]) * 1024 / _GIBIBYTE}
        return {}

    def _read(self, name: str) -> list[str]:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return []


def mean_of_samples(samples: list[dict[str, Metrics]]) -> dict[str, Metrics]:
    """The mean of each metric over the samples that have it, by group."""
    values: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for group, metrics in sample.items():
            for name, value in metrics.items():
                values.setdefault(group, {}).setdefault(name, []).append(value)
    return {
        group: {name: sum(some) / len(some) for name, some in metrics.items()}
        for group, metrics in values.items()
    }


def gpu_reader() -> Callable[[], Metrics]:
    """A function that reads the GPUs through NVIDIA's library, or one that finds none."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except Exception:
        # The package, the driver or a GPU is missing.
        return dict
    return lambda: dict(_gpu_metrics(pynvml, handles))


def _gpu_metrics(library: Any, handles: list[Any]) -> Iterator[tuple[str, float]]:
    for index, handle in enumerate(handles):
        try:
            used = library.nvmlDeviceGetUtilizationRates(handle).gpu
            free = library.nvmlDeviceGetMemoryInfo(handle).free
        except Exception:
            # One that fell off the bus must not hide the others.
            continue
        yield f"gpu_util_{index}", float(used)
        yield f"gpu_free_memory_{index}", free / _GIBIBYTE


def _processor_counters(lines: list[str]) -> Metrics:
    """The total and idle time of all processors in the kernel's ticks (proc_stat(5))."""
    for line in lines:
        fields = line.split()
        if fields[:1] == ["cpu"] and len(fields) >= 6:
            # What guests take is counted as the time of a user's process already.
            ticks = [float(field) for field in fields[1:9]]
            return {"cpu_ticks": sum(ticks), "cpu_idle_ticks": ticks[3] + ticks[4]}
    return {}


def _processor_metrics(grown: Metrics) -> Metrics:
    ticks = grown.get("cpu_ticks", 0.0)
    if ticks <= 0:
        return {}
    return {"cpu_util_simple": 100.0 * (1.0 - grown["cpu_idle_ticks"] / ticks)}


def _disk_counters(lines: list[str]) -> Metrics:
    """Transfers and bytes of all disks (the kernel's admin-guide/iostats)."""
    found = {"disk_iops": 0.0, "disk_throughput_read": 0.0, "disk_throughput_write": 0.0}
    for line in lines:
        fields = line.split()
        # Partitions and what is layered over disks would count twice.
        if len(fields) < 11 or not _is_disk(fields[2]):
            continue
        found["disk_iops"] += float(fields[3]) + float(fields[7])
        found["disk_throughput_read"] += float(fields[5]) * SECTOR_BYTES
        found["disk_throughput_write"] += float(fields[9]) * SECTOR_BYTES
    return found if lines else {}


def _is_disk(name: str) -> bool:
    if name.startswith("nvme") or name.startswith("mmcblk"):
        return "p" not in name.removeprefix("mmcblk").removeprefix("nvme")
    return name.startswith(("sd", "vd", "xvd", "hd")) and not name[-1].isdigit()


def _network_counters(lines: list[str]) -> Metrics:
    """Bytes of all network interfaces but the loopback (proc_pid_net(5))."""
    found = {"net_throughput_recv": 0.0, "net_throughput_sent": 0.0}
    for line in lines:
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() != "lo" and len(fields) >= 9:
            found["net_throughput_recv"] += float(fields[0])
            found["net_throughput_sent"] += float(fields[8])
    return found if lines else {}


def _rates(grown: Metrics, seconds: float, prefix: str) -> Metrics:
    return {
        name: max(value, 0.0) / seconds for name, value in grown.items() if name.startswith(prefix)
    }
