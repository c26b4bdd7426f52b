"""Slots: the devices that this node offers to trials."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# NVIDIA's vendor id in the `vendor` files of PCI devices.
NVIDIA_VENDOR = "0x10de"


@dataclass(frozen=True, slots=True)
class Slot:
    """A device that a process of a trial uses."""

    id: int
    """The device's number on this node."""
    type: str
    """`cuda` or `cpu`."""
    uuid: str
    """An identifier that stays the same when the agent restarts."""
    name: str
    """The device's model name, or `CPU`."""


class SlotsUnknown(Exception):
    """The node's devices could not be listed."""


def discover_slots(count: int | None, without_gpus: int | None = None) -> list[Slot]:
    """Return the slots of this node.

    With a `count`, return this number of CPU slots and detect nothing. Otherwise return a slot for
    each NVIDIA GPU. Without GPUs, return `without_gpus` CPU slots, by default one per usable core.
    Raise SlotsUnknown if nvidia-smi fails although the node has an NVIDIA device.
    """
    if count is not None:
        return cpu_slots(count)
    return nvidia_slots() or cpu_slots(usable_cores() if without_gpus is None else without_gpus)


def nvidia_slots(root: Path = Path("/")) -> list[Slot]:
    """Return a slot for each GPU that nvidia-smi lists.

    Return an empty list if nvidia-smi is not installed, or fails on a machine without an NVIDIA
    device. Raise SlotsUnknown if nvidia-smi fails on a machine with an NVIDIA device. `root` is the
    folder that contains the machine's dev and sys folders.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        return parse_nvidia_listing(_run_nvidia_smi(program))
    except SlotsUnknown:
        # GPU machine images contain nvidia-smi, but may also run on machines without a GPU.
        if not _has_nvidia_device(root):
            return []
        raise


def query_nvidia_smi(fields: str) -> str:
    """Return the output of nvidia-smi: for each GPU, a line of comma-separated values.

    Raise SlotsUnknown if nvidia-smi is missing or fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SlotsUnknown("nvidia-smi is not installed")
    return _run_nvidia_smi(program, fields)


def _run_nvidia_smi(program: str, fields: str = "index,uuid,name") -> str:
    """Return what nvidia-smi prints about each GPU. Raise SlotsUnknown if nvidia-smi fails."""
    # Imported here to keep idle agents without GPUs small (docs/benchmarks.md, `cluster`: idle).
    import subprocess

    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlotsUnknown(f"nvidia-smi failed: {error}; give --slots N for CPU slots") from error
    if done.returncode != 0:
        shown = (done.stderr or done.stdout).strip()[:200]
        raise SlotsUnknown(f"nvidia-smi failed: {shown}; give --slots N for CPU slots")
    return done.stdout


def _has_nvidia_device(root: Path) -> bool:
    """Whether the machine has an NVIDIA device, with or without a driver."""
    if any(root.glob("dev/nvidia*")):
        return True
    vendors = root.glob("sys/bus/pci/devices/*/vendor")
    return any(vendor.read_text(encoding="ascii").strip() == NVIDIA_VENDOR for vendor in vendors)


def parse_nvidia_listing(listing: str) -> list[Slot]:
    """Parse lines of `index, uuid, name` into `cuda` slots, and skip blank lines.

    Raise SlotsUnknown if a line has fewer than three fields or the index is no number.
    """
    slots = []
    for line in filter(None, map(str.strip, listing.splitlines())):
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) != 3 or not fields[0].isdigit():
            raise SlotsUnknown(f"nvidia-smi printed {line!r}; expected index, uuid, name")
        slots.append(Slot(int(fields[0]), "cuda", fields[1], fields[2]))
    return slots


def cpu_slots(count: int) -> list[Slot]:
    """Return `count` CPU slots with ids from 0. The uuids contain the host name and the id."""
    host = socket.gethostname()
    return [Slot(n, "cpu", f"cpu-{host}-{n}", "CPU") for n in range(count)]


def threads_per_slot(slots: Sequence[Slot]) -> int:
    """Return the usable cores divided by the number of slots, rounded down, but at least 1.

    Without slots, return the number of usable cores.
    """
    return max(1, usable_cores() // max(1, len(slots)))


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
