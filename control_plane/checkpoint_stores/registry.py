"""The registry of checkpoint store types, which imports every module in the folder `types`.

The modules are imported on the first lookup, because their options use classes of
`control_plane.config`. A type from another package is added with `register` before its first use.
"""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from control_plane.checkpoint_stores import types
from control_plane.checkpoint_stores.store_type import StoreType

AnyStoreType = StoreType[Any]

_registered: dict[str, AnyStoreType] = {}


def register(spec: AnyStoreType) -> None:
    """Add a type to the registry of this process. Raises ValueError if the name is taken."""
    if spec.name in _types_by_name():
        raise ValueError(f"there is a checkpoint store {spec.name} already")
    _registered[spec.name] = spec


def store_types() -> tuple[AnyStoreType, ...]:
    """Return all types, built in and registered, sorted by `listing_order` and then by name."""
    specs = _types_by_name().values()
    return tuple(sorted(specs, key=lambda spec: (spec.listing_order, spec.name)))


def store_type(name: str) -> AnyStoreType:
    """Return the type with a name. Raises KeyError for an unknown name.

    The parser of configurations rejects unknown names earlier.
    """
    return _types_by_name()[name]


def _types_by_name() -> Mapping[str, AnyStoreType]:
    return {**_builtin_types(), **_registered}


@cache
def _builtin_types() -> Mapping[str, AnyStoreType]:
    found: dict[str, AnyStoreType] = {}
    for module in pkgutil.iter_modules(types.__path__):
        spec = import_module(f"{types.__name__}.{module.name}").SPEC
        assert spec.name == module.name, f"{module.name}.py holds the store {spec.name}"
        found[spec.name] = spec
    return found
