"""Measurements of a simulated machine with counters in files like /proc."""

import os
import sys
import threading
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.profiler import ProfilerContext, Sampler, gpu_reader, mean_of_samples
from tests.patience import wait_until
from tests.unit.core.trial_files import enter, make_trial


class Machine:
    """Folder like /proc; `count` sets the counters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net").mkdir(parents=True)
        self.count(busy=0, idle=0, sectors=0, sent=0)

    def count(self, *, busy: int, idle: int, sectors: int, sent: int) -> None:
        disk = f"8 0 {{}} {sectors} 0 {sectors} 0 {sectors} 0 {2 * sectors} 0 0 0 0"
        self.write("stat", f"cpu  {busy} 0 0 {idle} 0 0 0 0 99 0\ncpu0 1 1 1 1\n")
        names = ("sda", "sda1", "nvme0n1", "nvme0n1p1", "dm-0", "loop0")
        self.write("diskstats", "\n".join(map(disk.format, names)))
        faces = f"  lo: {sent} 0 0 0 0 0 0 0 {sent}\n eth0: 5 0 0 0 0 0 0 0 {sent} 0\n"
        self.write("net/dev", f"Inter-| Receive\n face |bytes\n{faces}")
        self.write("meminfo", "MemTotal: 9 kB\nMemAvailable: 2097152 kB\n")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def test_rates_are_measured_since_the_previous_sample(machine: Machine) -> None:
    sampler = Sampler(machine.folder, start=10.0)
    machine.count(busy=30, idle=10, sectors=100, sent=4_000)
    sample = sampler.sample(12.0)
    assert sample["cpu"] == {"cpu_util_simple": pytest.approx(75.0)}
    assert sample["memory"] == {"memory_free": 2.0}
    # Two disks, each with 100 reads and 100 writes of 512 and 1024 bytes, in two seconds.
    assert sample["disk"] == {
        "disk_iops": 200.0,
        "disk_throughput_read": 51_200.0,
        "disk_throughput_write": 102_400.0,
    }
    assert sample["network"] == {"net_throughput_recv": 0.0, "net_throughput_sent": 2_000.0}
    # The counters are unchanged, so no processor time has passed.
    assert "cpu" not in sampler.sample(14.0)


def test_missing_counters_are_omitted(tmp_path: Path) -> None:
    assert Sampler(tmp_path, start=0.0).sample(1.0) == {}
    for name in ("stat", "diskstats", "meminfo"):
        (tmp_path / name).write_text("cpu\n\nMemTotal: 3\n8 0 sda 1\n")
    assert "cpu" not in Sampler(tmp_path, start=0.0).sample(1.0)


def test_a_report_averages_existing_samples() -> None:
    samples = [{"cpu": {"a": 1.0}}, {"cpu": {"a": 3.0, "b": 5.0}, "disk": {"c": 7.0}}]
    assert mean_of_samples(samples) == {"cpu": {"a": 2.0, "b": 5.0}, "disk": {"c": 7.0}}


def test_gpus_are_read_if_nvml_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = types.ModuleType("pynvml")

    def utilization(handle: int) -> Any:
        if handle == 1:
            raise RuntimeError("fell off the bus")
        return types.SimpleNamespace(gpu=40 + handle)

    library.nvmlInit = lambda: None
    library.nvmlDeviceGetCount = lambda: 3
    library.nvmlDeviceGetHandleByIndex = lambda index: index
    library.nvmlDeviceGetUtilizationRates = utilization
    library.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(free=3 << 30)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert gpu_reader()() == {
        "gpu_util_0": 40.0,
        "gpu_free_memory_0": 3.0,
        "gpu_util_2": 42.0,
        "gpu_free_memory_2": 3.0,
    }
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_reader()() == {}


def test_profiler_reports_between_on_and_off(machine: Machine) -> None:
    reports: list[dict[str, object]] = []

    def report(kind: str, **fields: object) -> None:
        reports.append(fields)

    profiler = ProfilerContext(report, is_active=True, proc=machine.folder)
    profiler.on(sampling_interval=0.1, samples_per_report=2)
    profiler.on()
    wait_until(lambda: bool(reports))
    profiler.off()
    count = len(reports)
    assert {report["group"] for report in reports} <= {"cpu", "memory", "disk", "network"}
    assert all(isinstance(report["steps_completed"], int) for report in reports)
    profiler.off()
    assert len(reports) == count


def open_for_reader(pipe: Path) -> Any:
    """Return the pipe's file for writing, or None if no thread reads the pipe."""
    try:
        return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
    except OSError:
        return None


def test_profiler_reports_a_short_trial_at_its_end(machine: Machine) -> None:
    reports: list[object] = []
    memory = machine.folder / "meminfo"
    text = memory.read_text()
    memory.unlink()
    os.mkfifo(memory)
    profiler = ProfilerContext(
        lambda kind, **fields: reports.append(fields["group"]), is_active=True, proc=machine.folder
    )
    profiler.on(sampling_interval=0.1, samples_per_report=10_000)
    # The pipe opens when the first sample reads the file. Later samples read a plain file.
    with wait_until(partial(open_for_reader, memory)) as pipe:
        memory.unlink()
        memory.write_text(text)
        pipe.write(text)
    assert reports == []
    profiler.off()
    assert "memory" in reports


@pytest.mark.parametrize("wrong", [{"sampling_interval": 0}, {"samples_per_report": 0}])
def test_profiler_refuses_zero_intervals(wrong: dict[str, int]) -> None:
    with pytest.raises(DetcloudError, match=next(iter(wrong))):
        ProfilerContext(lambda *_, **__: None, is_active=True).on(**wrong)


def test_configuration_enables_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, config={"profiling": {"enabled": True}})
    enter(trial, monkeypatch)
    with core.init():
        assert "profiler" in thread_names()
    assert "profiler" not in thread_names()


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_an_alert_is_a_line_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    enter(make_trial(tmp_path), monkeypatch)
    with core.init() as context:
        context.alert("loss", "is not a number", "warn")
        with pytest.raises(
            DetcloudError, match="alert level 'loud' is unknown; expected one of debug, info"
        ):
            context.alert("x", level="loud")
    assert "[detcloud] alert (warn): loss: is not a number\n" in capfd.readouterr().err


def test_manual_tensorboard_mode_writes_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path), monkeypatch)
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
        assert list(context.train.get_tensorboard_path().iterdir()) == []
        context.train.upload_tensorboard_files()
    enter(make_trial(tmp_path / "auto"), monkeypatch)
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1.0})
        # A thread writes the event file.
        wait_until(lambda: len(list(context.train.get_tensorboard_path().iterdir())) == 1)
        with pytest.raises(DetcloudError, match="MANUAL"):
            context.train.upload_tensorboard_files()
