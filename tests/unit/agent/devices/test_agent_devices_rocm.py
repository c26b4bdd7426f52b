"""AMD GPUs as slots, from a folder tree like /sys of a machine with two MI300X and an APU."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from detcloud.agent.devices import apple
from detcloud.agent.devices.rocm import rocm_slots
from detcloud.agent.slots import Slot

GIB = 1 << 30
# The properties of the kernel driver, without those that no code reads.
PROPERTIES = """\
cpu_cores_count {cores}
simd_count {simds}
mem_banks_count 1
drm_render_minor {render}
unique_id {unique}
gfx_target_version {version}
vendor_id 4098
location_id {location}
domain 0
"""


def add_node(
    root: Path,
    number: int,
    *,
    gpu: int,
    memory: int,
    render: int = 0,
    unique: int = 0,
    version: int = 0,
    location: int = 0,
    heap: int = 1,
) -> None:
    """Write the folder of a node, and the device file of a GPU."""
    node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
    (node / "mem_banks/0").mkdir(parents=True)
    (node / "gpu_id").write_text(f"{gpu}\n")
    (node / "name").write_text("ip discovery\n" if gpu else "\n")
    (node / "mem_banks/0/properties").write_text(
        f"heap_type {heap if gpu else 0}\nsize_in_bytes {memory}\nflags 0\nwidth 8192\n"
    )
    values = {"render": render, "unique": unique, "version": version, "location": location}
    text = PROPERTIES.format(cores=0 if gpu else 96, simds=1216 if gpu else 0, **values)
    (node / "properties").write_text(text)
    if gpu:
        (root / "dev/dri").mkdir(parents=True, exist_ok=True)
        (root / f"dev/dri/renderD{render}").touch()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return the root of a machine: a processor, an APU without a memory of its own, two MI300X."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    add_node(tmp_path, 0, gpu=0, memory=512 * GIB)
    add_node(tmp_path, 1, gpu=7, memory=GIB // 2, render=128, location=0x0500, version=100306)
    mi300 = {"memory": 192 * GIB, "version": 90402}
    add_node(tmp_path, 2, gpu=11, render=129, unique=0x1F2E3D4C5B6A7988, location=0x0C00, **mi300)
    add_node(tmp_path, 10, gpu=12, render=137, unique=0xAA, location=0x2200, heap=2, **mi300)
    name = tmp_path / "sys/class/drm/renderD129/device/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("AMD Instinct MI300X\n")
    return tmp_path


def test_gpus_of_the_topology_are_slots(machine: Path) -> None:
    first = Slot(
        0,
        "rocm",
        "GPU-1f2e3d4c5b6a7988",
        "AMD Instinct MI300X",
        192 * 1024,
        handle="GPU-1f2e3d4c5b6a7988",
        files=("/dev/kfd", "/dev/dri/renderD129"),
    )
    slots = rocm_slots(machine, {})
    assert slots[0] == first
    assert (slots[1].id, slots[1].uuid, slots[1].name) == (1, "GPU-00000000000000aa", "AMD gfx942")
    assert len(slots) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        # The numbers count the APU.
        ({"ROCR_VISIBLE_DEVICES": "0"}, []),
        ({"ROCR_VISIBLE_DEVICES": "1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000aa,1"}, [0, 1]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [0, 1]),
        # HIP numbers the GPUs that ROCm leaves.
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_variables_limit_the_slots(
    machine: Path, variables: dict[str, str], expected: list[int]
) -> None:
    assert [slot.id for slot in rocm_slots(machine, variables)] == expected


def test_gpu_without_a_number_is_known_by_its_place(machine: Path) -> None:
    add_node(machine, 11, gpu=13, memory=16 * GIB, render=138, location=0x0308, version=110001)
    slot = rocm_slots(machine, {})[2]
    assert slot.uuid == f"rocm-{socket.gethostname()}-0000:03:01.0"
    # The fourth GPU of the machine.
    assert (slot.handle, slot.name) == ("3", "AMD gfx1101")


def test_machine_without_the_driver_has_no_slots(tmp_path: Path) -> None:
    assert rocm_slots(tmp_path, {}) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open all files")
def test_unusable_device_files_give_no_slots(machine: Path) -> None:
    (machine / "dev/kfd").chmod(0)
    assert rocm_slots(machine, {}) == []


def test_absent_gpu_file_gives_no_slot(machine: Path) -> None:
    (machine / "dev/dri/renderD129").unlink()
    assert [slot.uuid for slot in rocm_slots(machine, {})] == ["GPU-00000000000000aa"]


def test_mac_with_apple_silicon_has_a_single_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    assert apple.apple_slots() == []
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    (slot,) = apple.apple_slots()
    assert (slot.type, slot.id, slot.name) == ("mps", 0, "Apple GPU")
    assert slot.memory_mib > 0
