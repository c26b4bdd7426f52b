"""Conversion of states to the types that checkpoints may contain, and back.

Trials keep NumPy numbers and subclasses of dict in optimizers and schedulers. A checkpoint without
code cannot contain such classes. It contains plain values, and the objects that the trial creates
at the restart define the types.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import torch

_KEPT_DICTS = (dict, OrderedDict, Counter)
_PLAIN_BASES = (bool, int, float, str)


def to_plain(value: Any) -> Any:
    """Convert a value to plain types: enums, NumPy values, and subclasses of plain types.

    Nested values are converted, too. A deque becomes a list. Return values of all other types
    unchanged. A dict or list without changes is returned itself.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor) or kind in _PLAIN_BASES or value is None:
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, np.generic | np.ndarray):
        return _to_torch(value)
    if isinstance(value, dict):
        return _to_plain_dict(value)
    for base in (list, tuple, set):
        if isinstance(value, base):
            return _same_or(value, base, [to_plain(item) for item in value])
    if isinstance(value, deque):
        return [to_plain(item) for item in value]
    for plain in _PLAIN_BASES:
        if isinstance(value, plain):
            return plain(value)
    return value


def leave_out_objects(state: dict[str, Any], leave_out: Callable[[str, Any], None]) -> Any:
    """Return a scheduler's state in plain form, without attributes that have no plain form.

    Omitted attributes are objects like functions, which the code creates again. `leave_out` is
    called with the name and value of each.
    """
    kept: dict[str, Any] = {}
    for name, value in to_plain(state).items():
        if _is_plain(value):
            kept[name] = value
        else:
            leave_out(name, value)
    return kept


def restore_types(present: Any, stored: Any) -> Any:
    """Return the stored value with the types of the present value.

    Enums, NumPy values, deques and subclasses of plain types are rebuilt. A stored value whose
    structure differs from the present one stays plain.
    """
    kind = type(present)
    if isinstance(present, dict) and isinstance(stored, dict):
        made = {name: restore_types(present.get(name), item) for name, item in stored.items()}
        return made if kind is dict else _rebuild(kind, made, stored)
    if isinstance(present, list | tuple) and isinstance(stored, list | tuple):
        if len(present) != len(stored):
            return stored
        items = [restore_types(was, entry) for was, entry in zip(present, stored, strict=True)]
        if hasattr(present, "_fields"):
            return kind(*items)
        return _rebuild(kind, items, stored)
    is_other = kind is not type(stored) and present is not None
    if isinstance(present, np.ndarray) and isinstance(stored, torch.Tensor):
        return stored.numpy().astype(present.dtype)
    if is_other and isinstance(present, Enum | deque | np.generic):
        return _rebuild(kind, stored, stored)
    return stored


def _to_torch(value: Any) -> Any:
    """Convert a NumPy number to Python's, an array of numbers to a tensor, and a string to str.

    Other values stay.
    """
    if value.dtype.kind not in "biuf":
        return str(value) if isinstance(value, str) else value
    return value.item() if isinstance(value, np.generic) else torch.from_numpy(value.copy())


def _to_plain_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict with plain keys and values. If nothing changes, return `value`.

    Also return `value` if several keys would become equal.
    """
    items = {to_plain(key): to_plain(item) for key, item in value.items()}
    kind = type(value)
    if len(items) != len(value):
        return value
    if kind not in _KEPT_DICTS:
        return items
    pairs = zip(items.items(), value.items(), strict=True)
    if all(new[0] is old[0] and new[1] is old[1] for new, old in pairs):
        # A module's state has the versions of its parts as an attribute of the dict.
        return value
    return kind(items)


def _same_or(value: Any, base: type, items: list[Any]) -> Any:
    """Return `value` if all items are unchanged, else the items as `base`."""
    is_same = all(map(operator.is_, value, items))
    return value if is_same and type(value) is base else base(items)


def _is_plain(value: Any) -> bool:
    """Return whether a checkpoint can contain the value, with all parts.

    Plain are None, numbers, texts, tensors, and torch's sizes, types and devices, also in dicts,
    lists, tuples and sets.
    """
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    kinds = (*_PLAIN_BASES, torch.Tensor, torch.Size, torch.dtype, torch.device)
    return value is None or isinstance(value, kinds)


def _rebuild(kind: type, value: Any, otherwise: Any) -> Any:
    """Return `kind(value)`, or `otherwise` if the constructor raises an exception."""
    try:
        return kind(value)
    except Exception:
        return otherwise
