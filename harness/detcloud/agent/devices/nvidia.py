"""The list of NVIDIA GPUs and MIG instances from nvidia-smi."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.devices.visible import is_uuid, visible_positions
from detcloud.agent.slots import Slot, SlotsUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# NVIDIA's vendor id in the `vendor` files of PCI devices.
NVIDIA_VENDOR = "0x10de"
FIELDS = "index,uuid,name,memory.total,mig.mode.current"
OLD_FIELDS = "index,uuid,name"
"""The fields that drivers without MIG know, too."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_GPU_LINE = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
# The profile of an instance names the memory, for example `1g.10gb` or `1c.3g.40gb+me`.
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine."""

    index: int
    """The number of nvidia-smi."""
    uuid: str
    name: str
    memory_mib: int = 0
    """The memory. 0: unknown."""
    has_mig: bool = False
    """Whether the GPU is in MIG mode. Only MIG instances can compute then."""
    instances: tuple[tuple[str, str], ...] = ()
    """The profile and the UUID of each MIG instance."""

    def slots(self) -> list[Slot]:
        """Return the GPU as a slot, or a slot for each instance in MIG mode. Ids are 0."""
        if not self.has_mig:
            return [Slot(0, "cuda", self.uuid, self.name, self.memory_mib)]
        return [
            Slot(0, "cuda", uuid, f"{self.name} MIG {profile}", _profile_mib(profile), self.uuid)
            for profile, uuid in self.instances
        ]


def nvidia_slots(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> list[Slot]:
    """Return a slot for each GPU that nvidia-smi lists, or for each instance of a GPU in MIG mode.

    CUDA_VISIBLE_DEVICES in the environment limits the slots. Without GPUs in MIG mode, the ids are
    the numbers of nvidia-smi. Otherwise the slots of all GPUs are counted.

    Return an empty list if nvidia-smi is not installed, or fails on a machine without an NVIDIA
    device. Raise SlotsUnknown if nvidia-smi fails on a machine with an NVIDIA device, and if the
    numbers of CUDA_VISIBLE_DEVICES are ambiguous. `root` is the folder that contains the machine's
    dev and sys folders.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        gpus = list_gpus()
    except SlotsUnknown:
        # GPU machine images contain nvidia-smi, but may also run on machines without a GPU.
        if not _has_nvidia_device(root):
            return []
        raise
    slots = _number(gpus)
    text = environment.get(VISIBLE)
    return slots if text is None else visible_slots(gpus, slots, text, environment.get(ORDER, ""))


def list_gpus() -> list[Gpu]:
    """Return the machine's GPUs with MIG instances. Raise SlotsUnknown if nvidia-smi fails."""
    try:
        listing = query_nvidia_smi(FIELDS)
    except SlotsUnknown:
        listing = query_nvidia_smi(OLD_FIELDS)
    gpus = parse_gpus(listing)
    if not any(gpu.has_mig for gpu in gpus):
        return gpus
    return with_instances(gpus, list_devices())


def query_nvidia_smi(fields: str) -> str:
    """Return the output of nvidia-smi: for each GPU, a line of comma-separated values.

    Raise SlotsUnknown if nvidia-smi is missing or fails.
    """
    return _run_nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader")


def list_devices() -> str:
    """Return the output of `nvidia-smi -L`: GPUs and MIG instances. Raise SlotsUnknown."""
    return _run_nvidia_smi("-L")


def _run_nvidia_smi(*arguments: str) -> str:
    # Imported here to keep idle agents without GPUs small (docs/benchmarks.md, `cluster`: idle).
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        raise SlotsUnknown("nvidia-smi is not installed")
    command = [program, *arguments]
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


def parse_gpus(listing: str) -> list[Gpu]:
    """Parse lines of FIELDS or OLD_FIELDS, and skip blank lines.

    Raise SlotsUnknown if a line has other fields or the index is no number.
    """
    gpus = []
    for line in filter(None, map(str.strip, listing.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) not in (3, 5) or not fields[0].isdigit():
            raise SlotsUnknown(f"nvidia-smi printed {line!r}; expected index, uuid, name")
        memory, mode = fields[3:] or ("", "")
        number = memory.partition(" ")[0]
        mib = int(number) if number.isdecimal() else 0
        gpus.append(Gpu(int(fields[0]), fields[1], fields[2], mib, mode == "Enabled"))
    return gpus


def with_instances(gpus: Sequence[Gpu], listing: str) -> list[Gpu]:
    """Return the GPUs with the MIG instances in the output of `nvidia-smi -L`."""
    found: dict[str, list[tuple[str, str]]] = {}
    uuid = ""
    for line in listing.splitlines():
        if match := _GPU_LINE.match(line):
            uuid = match[1]
        elif match := _MIG_LINE.match(line):
            found.setdefault(uuid, []).append((match[1], match[2]))
    return [replace(gpu, instances=tuple(found.get(gpu.uuid, ()))) for gpu in gpus]


def visible_slots(gpus: Sequence[Gpu], slots: Sequence[Slot], text: str, order: str) -> list[Slot]:
    """Return the slots that CUDA_VISIBLE_DEVICES makes visible.

    A number or a UUID of a GPU in MIG mode makes all instances visible. Numbers are those of
    nvidia-smi. CUDA numbers different GPUs by speed instead, unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID.

    Args:
        gpus: all GPUs.
        slots: the slots of all GPUs.
        text: the value of CUDA_VISIBLE_DEVICES.
        order: the value of CUDA_DEVICE_ORDER, or "".

    Raises:
        SlotsUnknown: numbers select from GPUs of different models, without PCI_BUS_ID.
    """
    if is_uuid(text.split(",")[0], "MIG-"):
        instances = [slot for slot in slots if slot.gpu]
        places = visible_positions(text, [slot.uuid for slot in instances], "MIG-")
        return [instances[place] for place in places]
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    places = visible_positions(text, [gpu.uuid for gpu in ordered])
    is_numbered = bool(places) and not is_uuid(text.split(",")[0], "GPU-")
    if is_numbered and len({gpu.name for gpu in gpus}) > 1 and order != "PCI_BUS_ID":
        raise SlotsUnknown(
            f"{VISIBLE}={text} selects by number from GPUs of different models: write UUIDs from "
            f"`nvidia-smi -L`, or set {ORDER}=PCI_BUS_ID for the numbers of nvidia-smi"
        )
    chosen = {ordered[place].uuid for place in places}
    return [slot for slot in slots if (slot.gpu or slot.uuid) in chosen]


def _number(gpus: Sequence[Gpu]) -> list[Slot]:
    """Return the slots of all GPUs with ids."""
    if not any(gpu.has_mig for gpu in gpus):
        return [replace(slot, id=gpu.index) for gpu in gpus for slot in gpu.slots()]
    slots = [slot for gpu in gpus for slot in gpu.slots()]
    return [replace(slot, id=number) for number, slot in enumerate(slots)]


def _profile_mib(profile: str) -> int:
    """Return the memory that the profile of a MIG instance names. 0 without a figure."""
    match = _PROFILE_MEMORY.search(profile)
    return int(match[1]) * 1024 if match else 0
