"""The result of a step, the checked machine, and measurements that several steps need."""

import argparse
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

GB, MIB = 10**9, 1 << 20
Figures = dict[str, Any]


class StepSkipped(Exception):
    """Raised by a step that this machine cannot run."""


class StepFailed(Exception):
    """Raised by a step that found a fault."""


@dataclass
class Step:
    """A check with its result: `ok`, `failed` or `skipped`, and the reason of the latter two."""

    name: str
    result: str = "failed"
    seconds: float = 0.0
    reason: str = ""
    figures: Figures = field(default_factory=dict)

    def line(self) -> str:
        texts = [
            f"{key} {figure_text(value)}" for key, value in self.figures.items() if is_plain(value)
        ]
        details = "; ".join(filter(None, (self.reason, ", ".join(texts))))
        return f"{self.name:<12} {self.result:<8} {self.seconds:>6.1f} s  {details}".rstrip()


@dataclass
class Machine:
    """The devices to check, the options, and the trial's context inside a trial."""

    devices: list[torch.device]
    options: argparse.Namespace
    trial: Any
    deadline: float
    """The end of the check, in seconds of `time.monotonic`."""
    folder: Path
    """A folder for large files, which is deleted at the end."""

    @property
    def is_cuda(self) -> bool:
        return self.devices[0].type == "cuda"

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()


class Precision(NamedTuple):
    """A type of numbers in a matrix product."""

    dtype: torch.dtype
    fp32_products: str
    """The argument of `torch.set_float32_matmul_precision`."""
    tolerance: float
    """The largest accepted error, as a share of the largest expected value."""
    capability: tuple[int, int] = (0, 0)
    """The lowest compute capability with hardware for the type."""


PRECISIONS = {
    # The factors are small integers, so that products in fp32 are exact.
    "fp32": Precision(torch.float32, "highest", 0.0),
    "tf32": Precision(torch.float32, "high", 2**-9, (8, 0)),
    "bf16": Precision(torch.bfloat16, "highest", 2**-6, (8, 0)),
    "fp16": Precision(torch.float16, "highest", 2**-9, (5, 3)),
}


def supported_precisions(device: torch.device) -> list[str]:
    """Return the precisions for which the device has hardware. A CPU has all except tf32."""
    if device.type == "cpu":
        return [name for name in PRECISIONS if name != "tf32"]
    if torch.version.hip:
        return [name for name in PRECISIONS if name != "tf32" or torch.cuda.is_tf32_supported()]
    capability = torch.cuda.get_device_capability(device)
    return [name for name, one in PRECISIONS.items() if capability >= one.capability]


def synchronize(device: torch.device) -> None:
    """Wait for the work that was submitted to a GPU. Do nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of_call(device: torch.device, action: Callable[[], object]) -> float:
    """Return the mean duration of a call on the device, from enough calls for a short time.

    The first call is not measured, because it allocates memory and chooses kernels.
    """
    least = 0.3 if device.type == "cuda" else 0.02
    action()
    synchronize(device)
    calls = 1
    while True:
        began = time.perf_counter()
        for _ in range(calls):
            action()
        synchronize(device)
        took = time.perf_counter() - began
        if took >= least or calls >= 1 << 16:
            return took / calls
        calls *= 2


def nvidia_smi(*words: str) -> str:
    """Return the output of nvidia-smi, or "" if the program is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def free_memory() -> int | None:
    """Return the bytes that this process can allocate, or None if unknown.

    Only detcloud's code reads the limits of a container, too.
    """
    try:
        from detcloud.core.available_memory import available_bytes
    except ImportError:
        pass
    else:
        return available_bytes()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def sync_file(path: Path) -> None:
    """Write a file's pages to the disk, so that a duration contains the disk's work."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def is_plain(value: object) -> bool:
    """Return whether the table shows a figure. Only the JSON document contains lists."""
    return isinstance(value, int | float | str)


def figure_text(value: Any) -> str:
    """Return a figure as text, with three significant digits for fractions."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
