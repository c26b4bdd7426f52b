"""The use of AMD GPUs, from the files of the kernel driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.slots import SlotsUnknown
from detcloud.agent.usage.nvml import GpuReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from detcloud.agent.slots import Slot

DRM = Path("/sys/class/drm")


class AmdReader:
    """Reads AMD GPUs. A reading is cheap."""

    is_slow = False

    def __init__(self, slots: Sequence[Slot], drm: Path = DRM) -> None:
        """Create the reader for the slots of the node. `drm` has a folder for each render file."""
        self._folders = {
            slot.uuid: drm / Path(file).name / "device"
            for slot in slots
            for file in slot.files
            if Path(file).name.startswith("renderD")
        }

    def read(self, uuids: Iterable[str]) -> dict[str, GpuReading]:
        """Return the use of GPUs by UUID. GPUs without figures of their memory are left out.

        Raise SlotsUnknown if no GPU has such figures.
        """
        wanted = list(uuids)
        readings = {}
        for uuid in wanted:
            folder = self._folders.get(uuid)
            total = None if folder is None else _number(folder / "mem_info_vram_total")
            if folder is None or not total:
                continue
            busy = _number(folder / "gpu_busy_percent")
            used = _number(folder / "mem_info_vram_used") or 0
            percent = None if busy is None else min(100.0, float(busy))
            readings[uuid] = GpuReading(percent, used / total)
        if wanted and not readings:
            raise SlotsUnknown("the driver has figures of none of the AMD GPUs")
        return readings


def _number(path: Path) -> int | None:
    """Return the number in a file. None if the driver has no figure."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
