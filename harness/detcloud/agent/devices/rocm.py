"""The list of AMD GPUs from the kernel driver's topology in /sys/class/kfd."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.devices.visible import visible_positions
from detcloud.agent.slots import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

KFD = "/dev/kfd"
"""The device through which all AMD GPUs compute."""
NODES = "sys/class/kfd/kfd/topology/nodes"
MEMORY_MIB_MIN = 4096
"""The least memory of a GPU that becomes a slot. The GPUs inside of processors reserve less."""
ROCR_VISIBLE = "ROCR_VISIBLE_DEVICES"
HIP_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The variables that HIP reads after ROCR_VISIBLE_DEVICES. The first variable with a value counts.
"""
# The heap types of memory banks on a GPU: visible to the processor, and private.
_HEAPS = ("1", "2")


@dataclass(frozen=True, slots=True)
class _Node:
    """A GPU in the topology."""

    properties: Mapping[str, str]
    name: str
    memory_mib: int

    @property
    def handle(self) -> str:
        """The UUID that ROCm prints, for example `GPU-5bd2f9f1aabbccdd`. "" without a number."""
        number = _integer(self.properties, "unique_id")
        return f"GPU-{number:016x}" if number else ""

    @property
    def render_file(self) -> str:
        """The device file of the GPU, for example `/dev/dri/renderD128`."""
        return f"/dev/dri/renderD{_integer(self.properties, 'drm_render_minor')}"

    @property
    def place(self) -> str:
        """The PCI address, for example `0000:c1:00.0`."""
        domain, location = (_integer(self.properties, x) for x in ("domain", "location_id"))
        device, function = location >> 3 & 0x1F, location & 7
        return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{device:02x}.{function}"


def rocm_slots(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Slot]:
    """Return a slot for each AMD GPU that this process may use.

    Return an empty list without the kernel driver, or if the process may not open /dev/kfd. GPUs
    with less than MEMORY_MIB_MIN are left out. The variables ROCR_VISIBLE_DEVICES and
    HIP_VISIBLE_DEVICES in the environment limit the slots; their numbers count all GPUs. `root` is
    the folder that contains the machine's dev and sys folders.
    """
    if not os.access(root / KFD[1:], os.R_OK | os.W_OK):
        return []
    nodes = [node for node in _read_nodes(root) if _is_usable(node, root)]
    every = [_to_slot(number, node, root) for number, node in enumerate(nodes)]
    visible = {slot.uuid for slot in _visible_slots(every, environment)}
    large = [slot for slot in every if slot.memory_mib >= MEMORY_MIB_MIN]
    numbered = [replace(slot, id=number) for number, slot in enumerate(large)]
    return [slot for slot in numbered if slot.uuid in visible]


def _read_nodes(root: Path) -> list[_Node]:
    """Return the GPUs of the topology, in the order of ROCm's numbers."""
    folders = [path for path in (root / NODES).glob("*") if path.name.isdecimal()]
    nodes = []
    for folder in sorted(folders, key=lambda path: int(path.name)):
        # The number of a processor's node is 0. The file of another container's GPU is unreadable.
        if _read_text(folder / "gpu_id") in ("", "0"):
            continue
        memory = 0
        for bank in (folder / "mem_banks").glob("*/properties"):
            properties = _read_properties(bank)
            if properties.get("heap_type") in _HEAPS:
                memory += _integer(properties, "size_in_bytes")
        properties = _read_properties(folder / "properties")
        nodes.append(_Node(properties, _read_text(folder / "name"), memory >> 20))
    return nodes


def _is_usable(node: _Node, root: Path) -> bool:
    return os.access(root / node.render_file[1:], os.R_OK | os.W_OK)


def _to_slot(number: int, node: _Node, root: Path) -> Slot:
    # The machine's PCI address identifies a GPU without a unique number.
    uuid = node.handle or f"rocm-{socket.gethostname()}-{node.place}"
    return Slot(
        number,
        "rocm",
        uuid,
        _product_name(node, root),
        node.memory_mib,
        handle=node.handle or str(number),
        files=(KFD, node.render_file),
    )


def _product_name(node: _Node, root: Path) -> str:
    """Return the name that the driver reads from the GPU's board, or the architecture's name."""
    render = Path(node.render_file).name
    product = _read_text(root / "sys/class/drm" / render / "device/product_name")
    version = _integer(node.properties, "gfx_target_version")
    # The version 90402 is the architecture gfx942: major, minor and stepping, the last two in hex.
    architecture = f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
    return product or f"AMD {architecture if version else node.name or 'GPU'}"


def _visible_slots(slots: list[Slot], environment: Mapping[str, str]) -> list[Slot]:
    """Return the slots that the variables make visible: of ROCm first, then of HIP."""
    text = environment.get(ROCR_VISIBLE)
    if text is not None:
        handles = [slot.handle for slot in slots]
        slots = [slots[place] for place in visible_positions(text, handles, mixes=True)]
    text = next(filter(None, map(environment.get, HIP_VISIBLE)), None)
    if text is not None:
        handles = [slot.handle for slot in slots]
        slots = [slots[place] for place in visible_positions(text, handles)]
    return slots


def _read_text(path: Path) -> str:
    """Return the content of a file without the line's end. "" if the file is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _read_properties(path: Path) -> dict[str, str]:
    """Return the values in lines of `name value`, by name."""
    lines = (line.split(None, 1) for line in _read_text(path).splitlines())
    return {line[0]: line[1].strip() for line in lines if len(line) == 2}


def _integer(properties: Mapping[str, str], name: str) -> int:
    """Return a value as a number. Return 0 for a missing value and for other texts."""
    text = properties.get(name, "")
    return int(text) if text.isdecimal() else 0
