"""The types of checkpoint stores there are, found by looking into the folder `types`.

They are imported when a configuration first names one, for their options are made of classes in
`control_plane.config`. A type from elsewhere is added with `register` before anything names it.
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
    """Add a type; ValueError if there is one of that name."""
    if spec.name in _types_by_name():
        raise ValueError(f"there is a checkpoint store {spec.name} already")
    _registered[spec.name] = spec


def store_types() -> tuple[AnyStoreType, ...]:
    """Every type, in the order of lists."""
    specs = _types_by_name().values()
    return tuple(sorted(specs, key=lambda spec: (spec.listing_order, spec.name)))


def store_type(name: str) -> AnyStoreType:
    """The type of that name, which a configuration has been checked to name. Raises KeyError."""
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
