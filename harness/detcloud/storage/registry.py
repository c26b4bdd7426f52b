"""The registry of checkpoint stores by the type that a configuration names.

A new type is a file in this folder and an entry in `_BUILDERS`, or a call of `register_store` from
outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from detcloud.storage.store import CheckpointStore, StorageError

# By type, `module:function` of what builds the store: a trial imports the one that it uses, since
# that of S3 takes a fifth of a second (docs/benchmarks.md, "a trial's process, plain").
_BUILDERS = {
    "directory": "detcloud.storage.directory:build_directory_store",
    "s3": "detcloud.storage.s3:build_s3_store",
    "shared_fs": "detcloud.storage.directory:build_directory_store",
}


def register_store(storage_type: str, builder: str) -> None:
    """Have `builder`, a `module:function`, build the stores of that type.

    The function takes the `storage` object and returns the store, or raises StorageError.
    """
    _BUILDERS[storage_type] = builder


def build_store(config: Mapping[str, Any]) -> CheckpointStore:
    """The store that a `storage` object of a trial's specification describes.

    Raises StorageError for a type that does not exist and for missing fields.
    """
    builder = _BUILDERS.get(str(config.get("type")))
    if builder is None:
        known = ", ".join(sorted(_BUILDERS))
        raise StorageError(f"storage type {config.get('type')!r} is unknown; known: {known}")
    module, _, function = builder.partition(":")
    store: CheckpointStore = getattr(import_module(module), function)(config)
    return store
