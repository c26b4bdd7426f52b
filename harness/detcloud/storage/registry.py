"""The registry of checkpoint stores by the type that a configuration names.

A type is a file of the folder `types` with a function `build_store`, or is added from outside by a
call of `register_store`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from detcloud.storage import types
from detcloud.storage.store import CheckpointStore, StorageError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# By type, `module:function` of what builds the store.
_registered: dict[str, str] = {}


def register_store(storage_type: str, builder: str) -> None:
    """Register `builder`, a `module:function`, which builds the stores of that type.

    The function takes the `storage` object and returns the store, or raises StorageError.
    """
    _registered[storage_type] = builder


def build_store(config: Mapping[str, Any]) -> CheckpointStore:
    """The store that a `storage` object of a trial's specification describes.

    Raises StorageError for a type that does not exist and for missing fields.
    """
    builder = _find_builder(str(config.get("type")))
    if builder is None:
        known = ", ".join(_known_types())
        raise StorageError(f"storage type {config.get('type')!r} is unknown; known: {known}")
    # A trial imports the store that it uses alone, since that of S3 takes a fifth of a second
    # (docs/benchmarks.md, "a trial's process, plain").
    module, _, function = builder.partition(":")
    store: CheckpointStore = getattr(import_module(module), function)(config)
    return store


def build_own_store(config: Mapping[str, Any]) -> CheckpointStore:
    """The store that a `storage` object describes, opened with what credentials the environment of
    this process has. Raises StorageError as `build_store`.
    """
    builder = _find_builder(str(config.get("type")))
    if builder is None or str(config.get("type")) in _registered:
        return build_store(config)
    module = import_module(builder.partition(":")[0])
    store: CheckpointStore = getattr(module, "build_data_store", module.build_store)(config)
    return store


def _find_builder(storage_type: str) -> str | None:
    if storage_type in _registered:
        return _registered[storage_type]
    # No name leads out of the folder, whatever a specification says.
    module = f"{types.__name__}.{storage_type}"
    is_known = _NAME.fullmatch(storage_type) and find_spec(module) is not None
    return f"{module}:build_store" if is_known else None


def _known_types() -> list[str]:
    # For the error alone: a trial starts without it.
    from pkgutil import iter_modules

    return sorted({*_registered, *(module.name for module in iter_modules(types.__path__))})
