"""A copy of a trial's state in main memory, which is written while the training continues."""

from __future__ import annotations

import copy
from typing import Any

import torch


class StateCopier:
    """Copies states into memory that is reused, because allocation takes longer than copying.

    A copy overwrites the previous copy, which must no longer be in use.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.UntypedStorage] = []

    @property
    def held_bytes(self) -> int:
        """The bytes that are kept for the next copy."""
        return sum(buffer.nbytes() for buffer in self._buffers)

    def copy_state(self, state: Any) -> Any:
        """Return a copy of the state with all tensors on the CPU, and keep the copy's memory.

        The previous copy is overwritten. Tensors that share memory in `state` also share memory in
        the copy. Other objects than dicts, lists, tuples, sets and tensors are not copied.
        """
        copying = _Copying(self._buffers)
        copied = copying.copy_value(state)
        self._buffers = list(copying.storages.values())
        return copied


class _Copying:
    """A copy in progress: the new storages by the address of the original."""

    def __init__(self, kept: list[torch.UntypedStorage]) -> None:
        self._kept = kept
        self.storages: dict[int, torch.UntypedStorage] = {}

    def copy_value(self, value: Any) -> Any:
        """Return a copy of nested dicts, lists, tuples, sets and tensors. Other values stay."""
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value)
        kind = type(value)
        if isinstance(value, dict):
            made = kind()
            for key, item in value.items():
                made[self.copy_value(key)] = self.copy_value(item)
            # A module's state has the versions of its parts as an attribute of the dict.
            if hasattr(value, "__dict__"):
                made.__dict__.update(copy.deepcopy(value.__dict__))
            return made
        if kind in (list, tuple, set):
            return kind(self.copy_value(item) for item in value)
        return value

    def _copy_tensor(self, value: torch.Tensor) -> torch.Tensor:
        """Return a copy on the CPU, with the tensor's view of the copied storage."""
        if not _is_plain(value):
            return copy.deepcopy(value.detach().cpu())
        storage = self._copy_storage(value.untyped_storage())
        place = (value.storage_offset(), value.size(), value.stride())
        return torch.empty(0, dtype=value.dtype).set_(storage, *place)

    def _copy_storage(self, source: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the copy of a storage, in reused memory of equal size if possible."""
        known = self.storages.get(source._cdata)
        if known is not None:
            return known
        number = len(self.storages)
        made: Any = self._kept[number] if number < len(self._kept) else None
        if made is None or made.nbytes() != source.nbytes():
            make: Any = torch.UntypedStorage
            made = make(source.nbytes())
        made.copy_(source)
        self.storages[source._cdata] = made
        return self.storages[source._cdata]


def state_bytes(state: Any) -> int:
    """Return the number of bytes of the tensors in nested dicts, lists, tuples and sets.

    Memory that several tensors share counts once. Other values count 0.
    """
    sizes: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if _is_plain(value):
                storage = value.untyped_storage()
                sizes[storage._cdata] = storage.nbytes()
            else:
                sizes[id(value)] = value.numel() * value.element_size()
        elif isinstance(value, dict):
            for item in value.values():
                add(item)
        elif isinstance(value, list | tuple | set):
            for item in value:
                add(item)

    add(state)
    return sum(sizes.values())


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is fully described by storage, type, offset, size and stride.

    Return False for subclasses, also Parameter, for sparse, quantized and meta tensors, and for
    tensors that are conjugated or negated lazily.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
