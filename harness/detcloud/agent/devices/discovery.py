"""The choice of the node's slots among the kinds of devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from detcloud.agent.slots import AUTO, Slot, SlotsUnknown, cpu_slots, usable_cores

if TYPE_CHECKING:
    from collections.abc import Mapping


def discover_slots(
    count: int | None,
    without_gpus: int | None = None,
    slot_type: str = AUTO,
    environment: Mapping[str, str] = os.environ,
) -> list[Slot]:
    """Return the slots of this node.

    With a `count`, return this number of CPU slots and detect nothing. Otherwise return a slot for
    each GPU and each MIG instance. CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and
    HIP_VISIBLE_DEVICES in the agent's environment limit the GPUs.

    Args:
        count: the number of CPU slots, or None.
        without_gpus: the number of CPU slots without GPUs. None: a slot for each usable core.
        slot_type: a value of SLOT_TYPES.
        environment: the agent's environment variables.

    Raises:
        SlotsUnknown: nvidia-smi fails although the node has an NVIDIA device. Also if the node has
            no device of a `slot_type` that names GPUs.
    """
    if count is not None:
        return cpu_slots(count)
    if slot_type != "cpu":
        found = _gpu_slots(slot_type, environment)
        if found:
            return found
        if slot_type != AUTO:
            raise SlotsUnknown(
                f"no device for --slot-type {slot_type} is usable; use --slot-type auto or cpu"
            )
    return cpu_slots(usable_cores() if without_gpus is None else without_gpus)


def _gpu_slots(slot_type: str, environment: Mapping[str, str]) -> list[Slot]:
    """Return the GPUs of a type. `auto` uses the first type with a GPU."""
    # Imported here to keep idle agents without GPUs small (docs/benchmarks.md, `cluster`: idle).
    from detcloud.agent.devices.apple import apple_slots
    from detcloud.agent.devices.nvidia import nvidia_slots
    from detcloud.agent.devices.rocm import rocm_slots

    if slot_type in (AUTO, "cuda") and (found := nvidia_slots(environment=environment)):
        return found
    if slot_type in (AUTO, "rocm") and (found := rocm_slots(environment=environment)):
        return found
    return apple_slots() if slot_type in (AUTO, "mps") else []
