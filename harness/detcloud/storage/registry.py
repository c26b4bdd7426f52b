"""The registry of checkpoint stores, by the type that a configuration names.

A type is a file in the folder `types` with a function `build_store`, or is registered from outside
by `register_store`.
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
# The `module:function` that builds the stores of each type.
_registered: dict[str, str] = {}


def register_store(storage_type: str, builder: str) -> None:
    """Register `builder`, a `module:function`, for the stores of a type.

    Replace an earlier builder of the type, also a builder of detcloud's own. The module is imported
    when a store is built. The function receives the `storage` object of a configuration, and
    returns the store or raises StorageError.
    """
    _registered[storage_type] = builder


def build_store(config: Mapping[str, Any]) -> CheckpointStore:
    """Return the store that the `storage` object of a trial's specification describes.

    Raises StorageError for an unknown type, for missing fields, and if the store cannot be used.
    Exceptions of importing a registered builder's module pass.
    """
    builder = _find_builder(str(config.get("type")))
    if builder is None:
        known = ", ".join(_known_types())
        raise StorageError(f"storage type {config.get('type')!r} is unknown; known: {known}")
    # Import only the type that is used: importing S3's client takes a fifth of a second
    # (docs/benchmarks.md, "a trial's process, plain").
    module, _, function = builder.partition(":")
    store: CheckpointStore = getattr(import_module(module), function)(config)
    return store


def build_own_store(config: Mapping[str, Any]) -> CheckpointStore:
    """Return the store that a `storage` object describes, for use outside of a trial.

    Stores of S3 and Google use the credentials of this process's environment. Other types, and
    types that `register_store` has added, are built as by `build_store`. Raises KeyError for S3 and
    Google without `bucket`. Raises StorageError for an unknown type, for missing fields of other
    types, and if the store cannot be used.
    """
    builder = _find_builder(str(config.get("type")))
    if builder is None or str(config.get("type")) in _registered:
        return build_store(config)
    module = import_module(builder.partition(":")[0])
    store: CheckpointStore = getattr(module, "build_data_store", module.build_store)(config)
    return store


def _find_builder(storage_type: str) -> str | None:
    """Return the `module:function` that builds the stores of a type. Return None for an unknown
    type.
    """
    if storage_type in _registered:
        return _registered[storage_type]
    # The pattern prevents names that lead out of the folder.
    module = f"{types.__name__}.{storage_type}"
    is_known = _NAME.fullmatch(storage_type) and find_spec(module) is not None
    return f"{module}:build_store" if is_known else None


def _known_types() -> list[str]:
    # Imported here, because only the error message needs the module.
    from pkgutil import iter_modules

    return sorted({*_registered, *(module.name for module in iter_modules(types.__path__))})
