"""Finds the devices that this node offers as slots."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Slot:
    """One device: its id on this node, `cuda` or `cpu`, a stable uuid and a name."""

    id: int
    type: str
    uuid: str
    name: str


class SlotsUnknown(Exception):
    """The devices could not be listed."""


def discover_slots(count: int | None) -> list[Slot]:
    """NVIDIA devices where `nvidia-smi` lists some, else `count` CPU slots (default: the cores).

    A given `count` always means CPU slots. Raises SlotsUnknown where nvidia-smi fails.
    """
    devices = [] if count is not None else nvidia_slots()
    return devices or cpu_slots(cores() if count is None else count)


def nvidia_slots() -> list[Slot]:
    """What nvidia-smi lists; none without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    import subprocess

    command = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlotsUnknown(f"nvidia-smi failed: {error}; give --slots N for CPU slots") from error
    if done.returncode != 0:
        shown = (done.stderr or done.stdout).strip()[:200]
        raise SlotsUnknown(f"nvidia-smi failed: {shown}; give --slots N for CPU slots")
    return parse_nvidia(done.stdout)


def parse_nvidia(listing: str) -> list[Slot]:
    """Slots from lines of `index, uuid, name`."""
    slots = []
    for line in filter(None, map(str.strip, listing.splitlines())):
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) != 3 or not fields[0].isdigit():
            raise SlotsUnknown(f"nvidia-smi printed {line!r}; expected index, uuid, name")
        slots.append(Slot(int(fields[0]), "cuda", fields[1], fields[2]))
    return slots


def cpu_slots(count: int) -> list[Slot]:
    """`count` >= 1 CPU slots with uuids that stay the same over restarts."""
    host = socket.gethostname()
    return [Slot(n, "cpu", f"cpu-{host}-{n}", "CPU") for n in range(max(1, count))]


def threads_per_slot(slots: Sequence[Slot]) -> int:
    """The CPU threads for each slot: they share the cores."""
    return max(1, cores() // max(1, len(slots)))


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
