"""Faults of NVIDIA GPUs: GPUs that disappeared, uncorrectable memory errors, and fatal Xids.

nvidia-smi names the first two. The driver writes an Xid to the kernel's log for each error. Only an
agent that may read the kernel's log, for example as root, finds Xids.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.health.machine_fault import MachineFault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.slots import Slot

FATAL_XIDS = {
    48: "double-bit memory error",
    62: "halt of the internal micro-controller",
    64: "failure to record a bad memory row",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "timeout of the GPU's system processor",
    120: "error of the GPU's system processor",
    136: "ALI training failed",
    140: "unrecovered memory error",
}
"""The Xids of NVIDIA's catalogue after which a GPU must be reset, and their meanings.

Xids that training code itself causes, such as 13, 31, 43 and 45, are left out.
"""
# The driver also names the MIG instance, for example `PCI:0000:3b:00 GPU-I:05`.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)(?: GPU-I:\d+)?\): (\d+)")
_BUS = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})")
# What nvidia-smi prints in place of a figure for a GPU that does not answer.
_BROKEN = re.compile(r"requires reset|unknown error|gpu is lost|err!", re.IGNORECASE)
_KERNEL_LOG = "/dev/kmsg"
_RECORD_BYTES = 8192


class GpuState(NamedTuple):
    """The answer of nvidia-smi about a GPU."""

    bus: str
    """The PCI address as `domain:bus:device`, in lower case."""
    ecc_errors: str
    """The number of uncorrectable memory errors since the driver was loaded, or another text."""


def parse_gpu_states(listing: str) -> dict[str, GpuState]:
    """Parse lines of `uuid, pci.bus_id, ecc.errors.uncorrected.volatile.total`, by UUID.

    Lines with fewer fields are skipped.
    """
    states = {}
    for line in listing.splitlines():
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) == 3:
            states[fields[0]] = GpuState(bus_address(fields[1]), fields[2])
    return states


def bus_address(text: str) -> str:
    """Return a PCI address as `domain:bus:device` with a domain of four digits; "" if malformed."""
    match = _BUS.search(text.lower())
    return ":".join(match.groups()) if match else ""


def find_gpu_faults(
    slots: Sequence[Slot],
    states: Mapping[str, GpuState],
    xids: Mapping[str, int],
    devices: str | None = None,
) -> list[MachineFault]:
    """Return the faults of the slots that are GPUs, at most a single fault for each slot.

    A fault of a GPU is a fault of all its MIG instances, because the GPU must be reset.

    Args:
        slots: the slots of the node.
        states: the answers of nvidia-smi, by the GPU's UUID.
        xids: the first fatal Xid by PCI address.
        devices: nvidia-smi's list with the UUIDs of MIG instances. None: not asked.
    """
    faults = []
    for slot in slots:
        if slot.type != "cuda":
            continue
        reason = _gpu_fault(states.get(slot.gpu or slot.uuid), xids)
        if not reason and slot.gpu and devices is not None and f"{slot.uuid})" not in devices:
            reason = "nvidia-smi no longer lists the MIG instance; restart the agent"
        if reason:
            faults.append(MachineFault(slot.id, f"{slot.name} {slot.uuid}: {reason}"))
    return faults


def parse_xid(record: str) -> tuple[str, int] | None:
    """Return the PCI address and the number of a fatal Xid in a line of the kernel's log.

    Return None for any other line.
    """
    match = _XID.search(record)
    if match is None or int(match[2]) not in FATAL_XIDS:
        return None
    return bus_address(match[1]), int(match[2])


class KernelLog:
    """The kernel's log from the start of the agent. Empty if the agent may not read it."""

    def __init__(self, path: str = _KERNEL_LOG) -> None:
        """Open the log, and skip the present records."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self._descriptor = -1

    def read_xids(self) -> list[tuple[str, int]]:
        """Return the PCI address and number of each fatal Xid since the last call."""
        found = []
        while self._descriptor >= 0:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                # The kernel has overwritten records. The next read continues after the gap.
                continue
            except OSError:
                break
            if not record:
                break
            xids = (parse_xid(line) for line in record.decode(errors="replace").splitlines())
            found += [xid for xid in xids if xid is not None]
        return found


def _gpu_fault(state: GpuState | None, xids: Mapping[str, int]) -> str:
    """Return the fault of a GPU, or ""."""
    if state is None:
        return "nvidia-smi no longer lists the GPU"
    if (xid := xids.get(state.bus)) is not None:
        return f"Xid {xid}, {FATAL_XIDS[xid]}"
    if _BROKEN.search(state.ecc_errors):
        return f"nvidia-smi reports {state.ecc_errors.strip('[]')}"
    if state.ecc_errors.isdecimal() and int(state.ecc_errors) > 0:
        return "uncorrectable memory errors (ECC)"
    return ""
