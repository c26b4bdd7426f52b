"""The needs of jobs for devices and users of the machine, and the kinds of agents.

All devices of an agent must meet the needs, because a request names no slots.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

SLOT_TYPES = ("cuda", "rocm", "mps", "cpu")
"""The types of slots that agents report."""
# Drivers keep a part of the memory: an L4 of 24 GiB reports 22.5 GiB, and an A10 22.2 GiB.
_REPORTED_SHARE = 0.9
DEVICES_MAX = 8
"""The most different devices of an agent that needs for devices can choose."""
_MIB = 2**20
_GIB = 2**30
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class AgentDevice:
    """A device of an agent, without the id."""

    type: str
    """The type of the slot, for example `cuda`."""
    name: str
    """The name that the driver reports. "" if unknown."""
    memory_mib: int = 0
    """The memory that the driver reports, in MiB. 0 if unknown."""


@dataclass(frozen=True, slots=True)
class AgentKind:
    """The properties of an agent that needs of jobs refer to."""

    devices: tuple[AgentDevice, ...] = ()
    """The different devices of the agent, sorted by type, name and memory. Empty for an agent with
    more than DEVICES_MAX different devices, which therefore meets no needs for devices.
    """
    only_user: str = ""
    """The only user of the machine that the agent can run trials as, as `UID:GID`. "" if the agent
    can run trials as any user, or does not report its user.
    """


@dataclass(frozen=True, slots=True)
class AgentNeeds:
    """The needs of a job."""

    slot_type: str = ""
    """A type of slots, or words of a device's name. "" for any device."""
    slot_memory: int = 0
    """The least memory of each device, in bytes."""
    agent_user: str = ""
    """The user of the machine that trials run as, as `UID:GID`. "" without such a user."""

    @property
    def text(self) -> str:
        """The needs for users, for example "slot_type H100 and slot_memory 40 GiB"."""
        parts = [f"slot_type {self.slot_type}"] if self.slot_type else []
        parts += [f"slot_memory {size_text(self.slot_memory)}"] if self.slot_memory else []
        parts += [f"the right to run trials as user {self.agent_user}"] if self.agent_user else []
        return " and ".join(parts)


NO_NEEDS = AgentNeeds()


def agent_kind(
    slots: Sequence[tuple[int, str, str, str]], memory_mib: Sequence[int], only_user: str = ""
) -> AgentKind:
    """Return the kind of an agent.

    Args:
        slots: the id, type, UUID and name of each slot.
        memory_mib: the memory of each slot. Missing entries are unknown.
        only_user: as in AgentKind.
    """
    memory = (*memory_mib, *[0] * len(slots))
    devices = {
        AgentDevice(slot_type, name, size)
        for (_, slot_type, _, name), size in zip(slots, memory, strict=False)
    }
    if len(devices) > DEVICES_MAX:
        return AgentKind((), only_user)
    ordered = sorted(devices, key=lambda device: (device.type, device.name, device.memory_mib))
    return AgentKind(tuple(ordered), only_user)


def meets_needs(kind: AgentKind | None, needs: AgentNeeds) -> bool:
    """Return whether agents of a kind meet the needs of a job.

    None is the kind of agents that report no devices. Such agents meet needs without a type and
    without memory. An agent without slots meets no need for devices.
    """
    if kind is None:
        return not (needs.slot_type or needs.slot_memory)
    if needs.agent_user and kind.only_user not in ("", needs.agent_user):
        return False
    return meets_device_needs(kind.devices, needs)


def meets_device_needs(devices: Sequence[AgentDevice], needs: AgentNeeds) -> bool:
    """Return whether all devices meet the needs for devices. False without devices, if the needs
    have a type or memory.
    """
    if not (needs.slot_type or needs.slot_memory):
        return True
    return bool(devices) and all(
        matches_slot_type(device, needs.slot_type)
        and needs.slot_memory * _REPORTED_SHARE <= device.memory_mib * _MIB
        for device in devices
    )


def matches_slot_type(device: AgentDevice, slot_type: str) -> bool:
    """Return whether `slot_type` is the device's type, or consists of words of the name.

    A word is a row of letters and digits, and case does not matter. Words may be in any order. So
    `A10` matches `NVIDIA A10`, and neither `NVIDIA A10G` nor `NVIDIA A100`.
    An empty `slot_type` matches every device.
    """
    wanted = slot_type.casefold()
    if wanted in SLOT_TYPES:
        return device.type == wanted
    return device_words(slot_type) <= device_words(device.name)


def device_words(text: str) -> frozenset[str]:
    """Return the words of a device's name, without case."""
    return frozenset(_WORD.findall(text.casefold()))


def size_text(size: int) -> str:
    """Return a size in bytes for users, in GiB or MiB. Sizes below 1 MiB are in bytes."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
