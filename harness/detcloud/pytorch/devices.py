"""The device on which a process of a trial trains."""

from __future__ import annotations

import os

import torch

SLOT_TYPE = "DETCLOUD_SLOT_TYPE"
"""The variable in which the agent names the type of the trial's slots."""


def process_device(local_rank: int) -> torch.device:
    """Return the GPU of the process with a local rank, or the CPU without GPUs.

    A trial on a slot of the type `mps` gets the GPU of the Mac. PyTorch for ROCm calls AMD GPUs
    `cuda`.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    return torch.device("mps" if uses_mps() else "cpu")


def uses_mps() -> bool:
    """Return whether the trial has the GPU of a Mac, and PyTorch can use this GPU."""
    return os.environ.get(SLOT_TYPE) == "mps" and torch.backends.mps.is_available()
