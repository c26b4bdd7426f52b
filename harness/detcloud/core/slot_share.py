"""The memory limit of a trial that shares a GPU with other trials."""

from __future__ import annotations

import os
import sys

VARIABLE = "DETCLOUD_SLOT_SHARE"


def limit_device_memory() -> None:
    """Limit torch's memory on each GPU to the trial's share of a slot.

    Do nothing for a trial with slots of its own, without torch, and without a GPU. Beyond the
    limit, torch raises its error for a lack of memory. torch must be imported before this call.
    """
    share, torch = os.environ.get(VARIABLE), sys.modules.get("torch")
    if not share or torch is None or not torch.cuda.is_available():
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(float(share), device)
