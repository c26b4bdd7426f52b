"""Slots: the devices that this node offers to trials."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTO = "auto"
SLOT_TYPES = (AUTO, "cuda", "rocm", "mps", "cpu")
"""The values of `--slot-type`. `auto` uses the first type in this order that the machine has."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A device that a process of a trial uses."""

    id: int
    """The device's number on this node."""
    type: str
    """`cuda`, `rocm`, `mps` or `cpu`."""
    uuid: str
    """An identifier that no restart of agent or machine changes."""
    name: str
    """The device's model name, or `CPU`."""
    memory_mib: int = 0
    """The device's memory. 0 for a CPU slot, or if unknown."""
    gpu: str = ""
    """The UUID of the GPU that a MIG instance is a part of. "" for any other device."""
    handle: str = ""
    """The device's name in variables that show devices to a process. "": the UUID."""
    files: tuple[str, ...] = ()
    """The device files that a container needs for an AMD GPU."""

    @property
    def fields(self) -> dict[str, object]:
        """The slot's fields in an enrolment."""
        return {
            "id": self.id,
            "type": self.type,
            "uuid": self.uuid,
            "name": self.name,
            "memory_mib": self.memory_mib,
        }


class SlotsUnknown(Exception):
    """The node's devices could not be listed."""


def cpu_slots(count: int) -> list[Slot]:
    """Return `count` CPU slots with ids from 0. The uuids contain the host name and the id."""
    host = socket.gethostname()
    return [Slot(n, "cpu", f"cpu-{host}-{n}", "CPU") for n in range(count)]


def number_slots(slots: Sequence[Slot], known: Mapping[str, int]) -> list[Slot]:
    """Return the slots with the known numbers of devices, sorted by number.

    A new device keeps its present number if no other device has it. Otherwise the device gets the
    lowest free number. `known` has the number of each device by UUID, of absent devices as well.
    """
    taken = set(known.values())
    numbered = []
    for slot in slots:
        number = known.get(slot.uuid)
        if number is None:
            number = slot.id if slot.id not in taken else _lowest_free(taken)
            taken.add(number)
        numbered.append(replace(slot, id=number))
    return sorted(numbered, key=lambda slot: slot.id)


def _lowest_free(taken: set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


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
