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

# The maker's number in PCI devices.
NVIDIA_VENDOR = "0x10de"


@dataclass(frozen=True, slots=True)
class Slot:
    """One device: its id on this node, `cuda` or `cpu`, a stable uuid and a name."""

    id: int
    type: str
    uuid: str
    name: str


class SlotsUnknown(Exception):
    """The devices could not be listed."""


def discover_slots(count: int | None, without_gpus: int | None = None) -> list[Slot]:
    """The NVIDIA devices, else `without_gpus` CPU slots (default: as many as cores).

    A given `count` always means CPU slots. Raises SlotsUnknown where nvidia-smi fails.
    """
    if count is not None:
        return cpu_slots(count)
    return nvidia_slots() or cpu_slots(usable_cores() if without_gpus is None else without_gpus)


def nvidia_slots(root: Path = Path("/")) -> list[Slot]:
    """The devices that nvidia-smi lists.

    None without the program, or where it fails on a machine without such a device. The machine's
    files are below `root`.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        return parse_nvidia_listing(_run_nvidia_smi(program))
    except SlotsUnknown:
        # Machine images for GPUs have the program, whatever machine they run on.
        if not _has_nvidia_device(root):
            return []
        raise


def _run_nvidia_smi(program: str) -> str:
    # Machines without GPUs never need it (docs/benchmarks.md, `cluster`: idle).
    import subprocess

    command = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlotsUnknown(f"nvidia-smi failed: {error}; give --slots N for CPU slots") from error
    if done.returncode != 0:
        shown = (done.stderr or done.stdout).strip()[:200]
        raise SlotsUnknown(f"nvidia-smi failed: {shown}; give --slots N for CPU slots")
    return done.stdout


def _has_nvidia_device(root: Path) -> bool:
    """Whether the machine has a device of NVIDIA's, with or without its driver."""
    if any(root.glob("dev/nvidia*")):
        return True
    vendors = root.glob("sys/bus/pci/devices/*/vendor")
    return any(vendor.read_text(encoding="ascii").strip() == NVIDIA_VENDOR for vendor in vendors)


def parse_nvidia_listing(listing: str) -> list[Slot]:
    """Slots from lines of `index, uuid, name`."""
    slots = []
    for line in filter(None, map(str.strip, listing.splitlines())):
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) != 3 or not fields[0].isdigit():
            raise SlotsUnknown(f"nvidia-smi printed {line!r}; expected index, uuid, name")
        slots.append(Slot(int(fields[0]), "cuda", fields[1], fields[2]))
    return slots


def cpu_slots(count: int) -> list[Slot]:
    """`count` CPU slots, or none, with uuids that stay the same over restarts."""
    host = socket.gethostname()
    return [Slot(n, "cpu", f"cpu-{host}-{n}", "CPU") for n in range(count)]


def threads_per_slot(slots: Sequence[Slot]) -> int:
    """The CPU threads for each slot: they share the cores."""
    return max(1, usable_cores() // max(1, len(slots)))


def usable_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
