"""Batches as nested structures of tensors: their type, their length and their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from detcloud.shared.errors import InvalidType, InvalidValue

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""What a data loader gives for a batch."""
# The kinds of NumPy's numbers that torch has too.
_NUMBER_KINDS = "fciub"


def data_length(data: Any) -> int:
    """The number of records in a batch: the length of the first tensor, array or list of plain
    values found in it.

    Raises InvalidValue where it is empty, and InvalidType for anything else than a batch.
    """
    if hasattr(data, "shape") and len(data.shape):
        return len(data)
    if isinstance(data, Mapping):
        data = list(data.values())
    elif _is_list(data) and len(data) and not _has_parts(data[0]):
        return len(data)
    if not _is_list(data):
        raise InvalidType(f"{data!r:.80} has no length: expected a batch of tensors")
    if not data:
        raise InvalidValue(f"{data!r:.80} has no length: expected a batch of at least one tensor")
    return data_length(data[0])


def _is_list(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, str | bytes)


def _has_parts(data: Any) -> bool:
    return bool(getattr(data, "shape", ())) or isinstance(data, Mapping) or _is_list(data)


def move_to_device(data: Any, device: torch.device, warned_types: object = None) -> Any:
    """The data with all that has a method `to` in its dicts, lists and tuples on the device, and
    arrays of numbers as tensors there.

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
    if isinstance(data, np.ndarray):
        is_number = data.dtype.kind in _NUMBER_KINDS
        return torch.from_numpy(data).to(device) if is_number else data
    # Packed sequences, encodings of tokens and batches of the user's own.
    return data.to(device) if callable(getattr(data, "to", None)) else data
