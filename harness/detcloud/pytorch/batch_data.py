"""Batches as nested structures of tensors: their type, their length and their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from detcloud.shared.errors import DetcloudError

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""What a data loader gives for a batch."""


def data_length(data: Any) -> int:
    """The number of records in a batch: the length of the first tensor or array found in it.

    Raises DetcloudError where there is none.
    """
    if hasattr(data, "shape") and len(data.shape):
        return len(data)
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and len(data):
        return data_length(data[0])
    raise DetcloudError(f"{data!r:.80} has no length: expected a batch of tensors")


def move_to_device(data: Any, device: torch.device, warned_types: object = None) -> Any:
    """The data with all that has a method `to` in its dicts, lists and tuples on the device.

    `warned_types` is Determined's and not needed: nothing is warned of.
    """
    if isinstance(data, torch.Tensor):
        is_there = data.is_cpu if device.type == "cpu" else data.device == device
        return data if is_there else data.to(device, non_blocking=True)
    if type(data) is list:
        return [move_to_device(value, device) for value in data]
    if isinstance(data, dict):
        return {key: move_to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to_device(value, device) for value in data))
    if isinstance(data, list | tuple):
        return type(data)([move_to_device(value, device) for value in data])
    # Packed sequences, encodings of tokens and batches of the user's own.
    return data.to(device) if callable(getattr(data, "to", None)) else data
