"""A worker of a gang's check: `python -m detcloud.pytorch.gang_all_reduce SECONDS`.

The worker measures the bandwidth of an all-reduce between all workers, with NCCL on GPUs and with
Gloo otherwise. Torch's variables, such as RANK and MASTER_ADDR, define the workers. The result is a
line of JSON on stdout: `bandwidth` in MB/s and `device`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist

from detcloud.shared.parent_death import end_with_parent

CPU_BYTES = 16 << 20
GPU_BYTES = 256 << 20
REPETITIONS = 5
MEASURED_SECONDS = 3.0
"""The time after which no further repetition begins."""


def main() -> int:
    """Measure the bandwidth, print the result, and return 0. Raises errors of torch."""
    end_with_parent(os.getppid())
    limit = timedelta(seconds=float(sys.argv[1]))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.is_available() and torch.cuda.device_count() > local
    device = torch.device("cuda", local) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=limit)
    bandwidth = measure_bandwidth(device, GPU_BYTES if has_gpu else CPU_BYTES)
    name = torch.cuda.get_device_name(device) if has_gpu else "cpu"
    print(json.dumps({"bandwidth": bandwidth, "device": name}), flush=True)
    return 0


def measure_bandwidth(device: torch.device, size_bytes: int) -> float:
    """Return the bandwidth of an all-reduce in MB/s, from the median of some repetitions.

    The figure counts the bytes that a ring sends over each link, so that gangs of different sizes
    can be compared. Raises RuntimeError if the sum is wrong or the all-reduce fails.
    """
    size = dist.get_world_size()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) <= REPETITIONS:
        tensor = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
        _synchronize(device)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        _synchronize(device)
        times.append(time.perf_counter() - start)
        if not bool((tensor == size).all()):
            raise RuntimeError("the all-reduce returned a wrong sum")
        # All workers must agree about the end.
        elapsed = torch.tensor([time.perf_counter() - began], device=device)
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX)
        if elapsed.item() > MEASURED_SECONDS and len(times) > 1:
            break
    # The first repetition opens connections.
    return 2 * (size - 1) / size * size_bytes / 1e6 / median(times[1:])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    # Destroying the process group may hang after a failure elsewhere.
    code = main()
    sys.stdout.flush()
    os._exit(code)
