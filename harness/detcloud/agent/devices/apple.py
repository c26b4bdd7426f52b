"""The GPU of a Mac with Apple silicon, which PyTorch uses as the device `mps`."""

from __future__ import annotations

import os
import platform
import socket

from detcloud.agent.slots import Slot


def apple_slots() -> list[Slot]:
    """Return a single slot on a Mac with Apple silicon, otherwise an empty list.

    The GPU shares the memory of the machine, so that the slot has all of this memory.
    """
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return [Slot(0, "mps", f"mps-{socket.gethostname()}", _chip_name(), memory_mib)]


def _chip_name() -> str:
    """Return the name of the chip, for example `Apple M3 Pro`."""
    import subprocess

    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "Apple GPU"
    return done.stdout.strip() or "Apple GPU"
