"""The workers of a node in a round of a gang's check."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from detcloud.launch.gang import Gang
from detcloud.launch.interfaces import interface_of
from detcloud.shared.files import parse_json_object
from detcloud.shared.masking import mask_urls

WORKER = "detcloud.pytorch.gang_all_reduce"
ERROR_CHARACTERS_MAX = 160
KILL_MARGIN_SECONDS = 5.0
"""The time after the limit of the all-reduce, at which the workers are killed."""


@dataclass(frozen=True)
class NodeResult:
    """The result of a node's workers in a round."""

    bandwidth: float
    """The lowest bandwidth of the workers in MB/s. 0 after an error."""
    device: str
    """The kind of devices."""
    error: str
    """The error of the first failed worker, or ""."""


@dataclass(frozen=True)
class WorkerPlace:
    """The place of a node's workers in a group."""

    host: str
    """The address at which the group's first worker listens."""
    port: int
    first_rank: int
    """The rank of the node's first worker in the group."""
    workers: int
    """The number of the node's workers."""
    size: int
    """The number of all workers of the group."""


def run_workers(gang: Gang, place: WorkerPlace, seconds: float) -> NodeResult:
    """Run the workers of this node, and return the result.

    Workers that run longer than `seconds` and a margin are killed, and the result is an error.
    """
    argv = [sys.executable, "-m", WORKER, str(seconds)]
    try:
        running = [
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=worker_environment(gang, place, local),
            )
            for local in range(place.workers)
        ]
    except OSError as error:
        return NodeResult(0.0, "", f"no worker can be started: {error}"[:ERROR_CHARACTERS_MAX])
    give_up_at = time.monotonic() + seconds + KILL_MARGIN_SECONDS
    results = [_result_of(worker, give_up_at) for worker in running]
    failed = next((result for result in results if result.error), None)
    return failed or min(results, key=lambda result: result.bandwidth)


def worker_environment(gang: Gang, place: WorkerPlace, local: int) -> dict[str, str]:
    """Return the environment variables of the worker with the number `local` of this node.

    The interface of the node's address is set for Gloo and NCCL. Interfaces that are set stay, as
    for the workers of the training.
    """
    environment = {
        **os.environ,
        "RANK": str(place.first_rank + local),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(local),
        "MASTER_ADDR": place.host,
        "MASTER_PORT": str(place.port),
    }
    interface = interface_of("127.0.0.1" if place.size == place.workers else gang.own_host)
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            environment.setdefault(name, interface)
    return environment


def _result_of(worker: subprocess.Popen[bytes], give_up_at: float) -> NodeResult:
    """Wait for a worker, and return the result. Kill the worker after the time `give_up_at`."""
    try:
        output, errors = worker.communicate(timeout=max(0.1, give_up_at - time.monotonic()))
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.communicate()
        return NodeResult(0.0, "", "the all-reduce took too long")
    lines = output.splitlines()
    fields = (parse_json_object(lines[-1]) if lines else None) or {}
    if worker.returncode or "bandwidth" not in fields:
        text = errors.decode(errors="replace").strip().splitlines() or ["the worker failed"]
        return NodeResult(0.0, "", mask_urls(text[-1])[:ERROR_CHARACTERS_MAX])
    return NodeResult(float(fields["bandwidth"]), str(fields.get("device", "")), "")
