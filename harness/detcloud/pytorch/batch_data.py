"""Batches as nested structures of tensors: type, length and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from detcloud.shared.errors import InvalidType, InvalidValue

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""A batch of a data loader."""
# The kinds of NumPy numbers that torch also has.
_NUMBER_KINDS = "fciub"


def data_length(data: Any) -> int:
    """Return the number of records in a batch: the length of the first tensor, array or list.

    Args:
        data: a tensor, array or list, or a dict, list or tuple of parts. The first part counts.

    Raises:
        InvalidValue: the batch is empty.
        InvalidType: the batch has no tensor, array or list.
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
    """Return whether a value is a sequence, but no text or bytes."""
    return isinstance(data, Sequence) and not isinstance(data, str | bytes)


def _has_parts(data: Any) -> bool:
    """Return whether a value is a tensor, an array, a dict, a list or a tuple."""
    return bool(getattr(data, "shape", ())) or isinstance(data, Mapping) or _is_list(data)


def move_to_device(data: Any, device: torch.device, warned_types: object = None) -> Any:
    """Return the data with all tensors, arrays and objects with a method `to` on the device.

    Dicts, lists and tuples are copied, also named tuples. A dict of any class becomes a plain dict.
    Arrays of numbers become tensors, which share the array's memory on the CPU. Tensors on the
    device, and values that cannot be moved, such as arrays of text, are returned unchanged.

    `warned_types` exists for code written for Determined and changes nothing.
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
    # Packed sequences, encodings of tokens and users' classes of batches have `to`.
    return data.to(device) if callable(getattr(data, "to", None)) else data
