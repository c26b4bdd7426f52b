"""Measurements of a trial's machine: processors, memory, disks, network and GPUs.

A thread samples Linux's counters in /proc and, if NVIDIA's library is installed, the GPUs. Averages
over several samples are reported as metrics of the groups cpu, memory, disk, network and gpu. The
steps of these metrics are seconds since 1970. Values that cannot be read are omitted. No failure
here ends the training.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcloud.shared.bundled_packages import offer_bundle
from detcloud.shared.errors import InvalidValue
from detcloud.shared.trial_directory import Reporter

Metrics = dict[str, float]
Counters = Mapping[str, float]

SECTOR_BYTES = 512
INTERVAL_SECONDS_MIN = 0.1
_GIBIBYTE = 1 << 30


class ProfilerContext:
    """Measures this machine from `on` to `off`, and reports means of the samples.

    Only the first process of each node measures; the calls have no effect elsewhere. The setting
    `profiling.enabled` measures the whole run. The steps of these metrics are seconds since 1970.

    | group | metrics |
    |---|---|
    | `cpu` | `cpu_util_simple`, the use of all processors in percent |
    | `memory` | `memory_free`, in GiB |
    | `gpu` | `gpu_util_0` in percent and `gpu_free_memory_0` in GiB, for each GPU |
    | `disk` | `disk_throughput_read` and `disk_throughput_write` in bytes per second, `disk_iops` |
    | `network` | `net_throughput_recv` and `net_throughput_sent` in bytes per second |

    The group `gpu` needs the package `nvidia-ml-py`.
    """

    def __init__(self, report: Reporter, *, is_active: bool, proc: Path = Path("/proc")) -> None:
        """Create the context, which measures nothing before `on`.

        Without `is_active`, this process never measures. `proc` is the folder of the kernel's
        counters.
        """
        self._report = report
        self._is_active = is_active
        self._proc = proc
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start_measuring(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Start a thread that samples the machine and reports means. Do nothing if the thread runs.

        Args:
            sampling_interval: the seconds between two samples, at least 0.1.
            samples_per_report: the number of samples in each mean, an int of at least 1.

        Raises:
            InvalidValue: an argument is out of range, also in processes that measure nothing.
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
            target=self._measure,
            args=(sampling_interval, samples_per_report),
            name="profiler",
            daemon=True,
        )
        self._thread.start()

    def stop_measuring(self) -> None:
        """Report the mean of the samples since the last report, and end the thread.

        Wait for the thread. Do nothing if nothing is measured.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join()

    # Determined's names.
    on = start_measuring
    off = stop_measuring

    def _measure(self, interval: float, samples_per_report: int) -> None:
        """Sample every `interval` seconds and report each mean, until `stop_measuring`.

        Any failure, such as a report that cannot be written, is printed and ends the measuring.
        """
        try:
            sampler = Sampler(self._proc, read_gpus=gpu_reader())
            samples: list[dict[str, Metrics]] = []
            while not self._stopping.wait(interval):
                samples.append(sampler.sample(time.monotonic()))
                if len(samples) == samples_per_report:
                    self._report_mean(samples)
                    samples = []
            # A trial that ends before the first report gets the mean of fewer samples.
            if samples:
                self._report_mean(samples)
        except Exception as error:
            print(f"[detcloud] measuring the machine has stopped: {error!r}", file=sys.stderr)

    def _report_mean(self, samples: list[dict[str, Metrics]]) -> None:
        """Append a `metrics` report for each group, with the means of the group's samples.

        The report's `steps_completed` is the present time in epoch seconds. Do nothing without
        samples. Raises DetcloudError if a report cannot be written.
        """
        now = int(time.time())
        for group, metrics in mean_of_samples(samples).items():
            self._report("metrics", group=group, steps_completed=now, metrics=metrics)


class Sampler:
    """Reads the counters of a machine. Rates are averages since the previous sample."""

    def __init__(
        self, proc: Path, read_gpus: Callable[[], Metrics] = dict, start: float | None = None
    ) -> None:
        """Read the counters of processors, disks and network for the first time.

        `proc` is the folder /proc; files that cannot be read are skipped. `read_gpus` returns the
        metrics of the GPUs, and is called by `sample` only. `start` is the monotonic time of this
        first reading, by default now. Raises ValueError for malformed counters.
        """
        self._proc = proc
        self._read_gpus = read_gpus
        self._before = self._counters()
        self._before_at = time.monotonic() if start is None else start

    def sample(self, now: float) -> dict[str, Metrics]:
        """Return the metrics of each group at the monotonic time `now`, in seconds.

        The groups are `cpu`, `memory`, `disk`, `network` and `gpu`. Units are percent, GiB, and
        operations or bytes per second. Groups without values are omitted. Files that cannot be read
        are skipped. Raises ValueError for malformed counters.
        """
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
        """Return the present counters of processors, disks and network, from files in /proc.

        Files that cannot be read are skipped, so that the result may be empty. Raises ValueError
        for malformed counters.
        """
        return {
            **_processor_counters(self._read("stat")),
            **_disk_counters(self._read("diskstats")),
            **_network_counters(self._read("net/dev")),
        }

    def _memory_metrics(self) -> Metrics:
        """Return `memory_free`, the available memory in GiB, or an empty dict if unknown."""
        for line in self._read("meminfo"):
            if line.startswith("MemAvailable:"):
                return {"memory_free": int(line.split()[1]) * 1024 / _GIBIBYTE}
        return {}

    def _read(self, name: str) -> list[str]:
        """Return the lines of a file in /proc, or an empty list if the file cannot be read."""
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return []


def mean_of_samples(samples: list[dict[str, Metrics]]) -> dict[str, Metrics]:
    """Return the mean of each metric, by group and name, over the samples that contain the
    metric.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for group, metrics in sample.items():
            for name, value in metrics.items():
                values.setdefault(group, {}).setdefault(name, []).append(value)
    return {
        group: {name: sum(numbers) / len(numbers) for name, numbers in metrics.items()}
        for group, metrics in values.items()
    }


def gpu_reader() -> Callable[[], Metrics]:
    """Return a function that reads the metrics of the GPUs through NVIDIA's library.

    The function leaves out each GPU that fails. Without the library, its driver or a GPU, return a
    function that returns an empty dict.
    """
    try:
        offer_bundle("gpu", "pynvml")
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except Exception:
        # The package, the driver or a GPU is missing.
        return dict
    return lambda: dict(_gpu_metrics(pynvml, handles))


def _gpu_metrics(library: Any, handles: list[Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each GPU's use in percent and free memory in GiB."""
    for index, handle in enumerate(handles):
        try:
            used = library.nvmlDeviceGetUtilizationRates(handle).gpu
            free = library.nvmlDeviceGetMemoryInfo(handle).free
        except Exception:
            # A GPU that fails must not hide the metrics of the healthy GPUs.
            continue
        yield f"gpu_util_{index}", float(used)
        yield f"gpu_free_memory_{index}", free / _GIBIBYTE


def _processor_counters(lines: list[str]) -> Metrics:
    """Return `cpu_ticks` and `cpu_idle_ticks`, the times of all processors together.

    The unit is the kernel's tick (proc_stat(5)). `cpu_ticks` is the total time. Idle time includes
    waiting for disks. Return an empty dict if no line begins with `cpu`. Raises ValueError for
    malformed counters.
    """
    for line in lines:
        fields = line.split()
        if fields[:1] == ["cpu"] and len(fields) >= 6:
            # The later fields, the time of guests, are part of the user time already.
            ticks = [float(field) for field in fields[1:9]]
            return {"cpu_ticks": sum(ticks), "cpu_idle_ticks": ticks[3] + ticks[4]}
    return {}


def _processor_metrics(grown: Metrics) -> Metrics:
    """Return `cpu_util_simple`, the use of all processors in percent.

    `grown` is the growth of each counter. Return an empty dict if no time has passed.
    """
    ticks = grown.get("cpu_ticks", 0.0)
    if ticks <= 0:
        return {}
    return {"cpu_util_simple": 100.0 * (1.0 - grown["cpu_idle_ticks"] / ticks)}


def _disk_counters(lines: list[str]) -> Metrics:
    """Return the sums of transfers and bytes over all disks (the kernel's admin-guide/iostats).

    The keys are `disk_iops`, `disk_throughput_read` and `disk_throughput_write`. Return an empty
    dict without lines. Raises ValueError for malformed counters.
    """
    totals = {"disk_iops": 0.0, "disk_throughput_read": 0.0, "disk_throughput_write": 0.0}
    for line in lines:
        fields = line.split()
        # Partitions and devices on top of disks would count twice.
        if len(fields) < 11 or not _is_disk(fields[2]):
            continue
        totals["disk_iops"] += float(fields[3]) + float(fields[7])
        totals["disk_throughput_read"] += float(fields[5]) * SECTOR_BYTES
        totals["disk_throughput_write"] += float(fields[9]) * SECTOR_BYTES
    return totals if lines else {}


def _is_disk(name: str) -> bool:
    """Return whether a block device is a whole disk, by the naming of the kernel.

    True for names like `sda` and `nvme0n1`. False for partitions, loops and mapped devices.
    """
    if name.startswith("nvme") or name.startswith("mmcblk"):
        return "p" not in name.removeprefix("mmcblk").removeprefix("nvme")
    return name.startswith(("sd", "vd", "xvd", "hd")) and not name[-1].isdigit()


def _network_counters(lines: list[str]) -> Metrics:
    """Return the bytes of all network interfaces except the loopback (proc_pid_net(5)).

    The keys are `net_throughput_recv` and `net_throughput_sent`. Return an empty dict without
    lines. Raises ValueError for malformed counters.
    """
    totals = {"net_throughput_recv": 0.0, "net_throughput_sent": 0.0}
    for line in lines:
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() != "lo" and len(fields) >= 9:
            totals["net_throughput_recv"] += float(fields[0])
            totals["net_throughput_sent"] += float(fields[8])
    return totals if lines else {}


def _rates(grown: Metrics, seconds: float, prefix: str) -> Metrics:
    """Return the growth per second of the counters whose names start with `prefix`, at least 0."""
    return {
        name: max(value, 0.0) / seconds for name, value in grown.items() if name.startswith(prefix)
    }
