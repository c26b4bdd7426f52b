"""Steps in processes of their own: torch.compile with a cache on disk, and collectives.

`gpu_check.py --child NAME` runs a function of CHILDREN, and prints its result as a line of JSON.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from gpu_step import (
    GB,
    MIB,
    Figures,
    Machine,
    StepFailed,
    StepSkipped,
    seconds_of_call,
    synchronize,
)

FOLDER = Path(__file__).parent
# A packed check is one file, and Python runs the file like a folder.
PROGRAM = FOLDER if FOLDER.is_file() else FOLDER / "gpu_check.py"
CHILD_SECONDS_MAX = 120.0
# The pattern of a tensor that is summed over all ranks. Sums are exact in fp32.
PERIOD = 1021


def check_compile(machine: Machine, figures: Figures) -> None:
    """Compile a function twice with one cache, in two processes; compare the speed with eager."""
    device = machine.devices[0]
    if reason := missing_compiler(device):
        raise StepSkipped(reason)
    cache = machine.folder / "compiled"
    # An agent sets both variables to a folder that later trials of the machine use again.
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    words = ["--child", "compile", "--device", str(device)]
    first, second = (run_children([words], machine, environment)[0] for _ in range(2))
    figures["first_seconds"], figures["second_seconds"] = first["seconds"], second["seconds"]
    figures["speed_ratio"] = second["ratio"]
    for run in (first, second):
        if not run["error"] <= 1e-2:
            raise StepFailed(f"the compiled function is off by {run['error']:g}")
    if not any(path.is_file() for path in cache.rglob("*")):
        raise StepFailed("torch.compile stored nothing in TORCHINDUCTOR_CACHE_DIR")
    if second["seconds"] > first["seconds"]:
        raise StepFailed(
            f"the second compilation took {second['seconds']:.1f} s, the first "
            f"{first['seconds']:.1f} s: the cache had no effect"
        )


def missing_compiler(device: torch.device) -> str:
    """Return the reason why torch.compile cannot run on the device, or "" if it can."""
    if device.type == "cpu":
        names = (os.environ.get("CXX", "g++"), "clang++")
        return "" if any(map(shutil.which, names)) else "no C++ compiler"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not torch.version.hip and torch.cuda.get_device_capability(device) < (7, 0):
        return "triton needs a GPU of compute capability 7.0 or newer"
    # Triton compiles the launcher of each kernel for the host.
    compilers = (os.environ.get("CC", "gcc"), "clang", "cc")
    return "" if any(map(shutil.which, compilers)) else "no C compiler"


def compile_child(options: argparse.Namespace) -> dict[str, float]:
    """Compile a function; return the seconds, the speed compared with eager, and the error."""
    device = torch.device(options.device)
    size = 4096 if device.type == "cuda" else 128
    values = torch.linspace(-3, 3, size * size, device=device).reshape(size, size)

    def compute(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.nn.functional.gelu(x) * 0.5 + x.sin()
        return x

    compiled = torch.compile(compute)
    began = time.perf_counter()
    result = compiled(values)
    synchronize(device)
    seconds = time.perf_counter() - began
    error = (result - compute(values)).abs().max().item()
    eager = seconds_of_call(device, lambda: compute(values))
    return {
        "seconds": seconds,
        "ratio": eager / seconds_of_call(device, lambda: compiled(values)),
        "error": error,
    }


def check_collectives(machine: Machine, figures: Figures) -> None:
    """Sum a tensor over processes: NCCL over all GPUs, or Gloo over two processes."""
    if not torch.distributed.is_available():
        raise StepSkipped("torch is built without torch.distributed")
    is_nccl = machine.is_cuda and len(machine.devices) > 1
    if is_nccl and not torch.distributed.is_nccl_available():
        raise StepFailed("torch is built without NCCL")
    if not is_nccl and not torch.distributed.is_gloo_available():
        raise StepSkipped("torch is built without Gloo")
    ranks = len(machine.devices) if is_nccl else 2
    figures["backend"], figures["ranks"] = "nccl" if is_nccl else "gloo", ranks
    rendezvous = machine.folder / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    shared = ["--child", "collectives", "--ranks", str(ranks), "--rendezvous", str(rendezvous)]
    words = [
        [*shared, "--rank", str(rank), "--device", f"cuda:{rank}" if is_nccl else "cpu"]
        for rank in range(ranks)
    ]
    # All processes are on this machine, whose name may resolve to an address that does not answer.
    is_loopback = not is_nccl and sys.platform == "linux"
    environment = {"GLOO_SOCKET_IFNAME": "lo"} if is_loopback else {}
    results = run_children(words, machine, environment)
    figures["gb_per_second"] = min(result["gb_per_second"] for result in results)
    for rank, result in enumerate(results):
        if result["wrong"]:
            raise StepFailed(f"rank {rank} has {result['wrong']:.0f} wrong sums after all_reduce")


def collectives_child(options: argparse.Namespace) -> dict[str, float]:
    """Sum a tensor over all ranks; return the number of wrong sums and the bus bandwidth."""
    device = torch.device(options.device)
    is_cuda, ranks = device.type == "cuda", options.ranks
    if is_cuda:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl" if is_cuda else "gloo",
        init_method=f"file://{options.rendezvous}",
        rank=options.rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
        device_id=device if is_cuda else None,
    )
    elements = (256 if is_cuda else 2) * MIB // 4
    values = rank_values(options.rank, elements, device)
    torch.distributed.all_reduce(values)
    wrong = count_wrong_sums(values, ranks)
    calls, values = (20 if is_cuda else 3), torch.zeros(elements, device=device)
    # The same number of calls on every rank, unlike calls for a time.
    torch.distributed.all_reduce(values)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(calls):
        torch.distributed.all_reduce(values)
    synchronize(device)
    seconds = (time.perf_counter() - began) / calls
    torch.distributed.destroy_process_group()
    # In a ring, each rank sends 2 (n - 1) / n of the tensor.
    moved = elements * 4 * 2 * (ranks - 1) / ranks
    return {"wrong": wrong, "gb_per_second": moved / seconds / GB}


def rank_values(rank: int, elements: int, device: torch.device) -> torch.Tensor:
    """Return the tensor of a rank before the sum."""
    return (torch.arange(elements, device=device) % PERIOD).float() * (rank + 1)


def count_wrong_sums(values: torch.Tensor, ranks: int) -> int:
    """Return the number of elements that differ from the sum of `rank_values` over all ranks."""
    # 1 + 2 + ... + n is n (n + 1) / 2, so the sum is the tensor of rank n (n + 1) / 2 - 1.
    expected = rank_values(ranks * (ranks + 1) // 2 - 1, values.numel(), values.device)
    return int((values != expected).sum().item())


CHILDREN = {"compile": compile_child, "collectives": collectives_child}


def run_children(
    words: list[list[str]], machine: Machine, environment: dict[str, str]
) -> list[dict[str, Any]]:
    """Run a process of PROGRAM for each list of words, all at once; return the printed results.

    Raises StepFailed with the last lines of a process that fails, and ends the other processes. No
    process runs longer than CHILD_SECONDS_MAX or the time that is left.
    """
    end = time.monotonic() + min(CHILD_SECONDS_MAX, max(1.0, machine.seconds_left))
    outputs = [machine.folder / f"child{number}" for number in range(len(words))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for one, output in zip(words, outputs, strict=True):
            with output.open("wb") as printed, output.with_suffix(".errors").open("wb") as errors:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, str(PROGRAM), *one],
                        env=os.environ | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=errors,
                    )
                )
        while any(process.poll() is None for process in processes):
            if time.monotonic() > end:
                raise StepFailed(f"a process did not end in time: {_last_lines(outputs)}")
            if any(process.poll() for process in processes):
                break
            time.sleep(0.05)
        failed = [n for n, process in enumerate(processes) if process.poll()]
        if failed:
            code, told = processes[failed[0]].returncode, _last_lines([outputs[failed[0]]])
            raise StepFailed(f"process {failed[0]} ended with code {code}: {told}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [_result(output) for output in outputs]


def _result(output: Path) -> dict[str, Any]:
    """Return the last line of JSON. NCCL prints its version to the same output."""
    lines = [line for line in output.read_text().splitlines() if line.startswith("{")]
    if not lines:
        raise StepFailed("a process printed no result")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _last_lines(outputs: list[Path]) -> str:
    """Return the last lines of the errors of some processes, at most 300 characters of each."""
    texts = [output.with_suffix(".errors").read_text(errors="replace") for output in outputs]
    return " | ".join(text.strip()[-300:] for text in texts if text.strip())
