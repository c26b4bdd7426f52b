"""The stated fields of a configuration: the fields that the user or the template set.

A checked configuration has a value for every field. The stated fields tell a submitted value from a
default, without a second copy of the values and their secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from control_plane.config.experiment import ExperimentConfig
from control_plane.findings import Loc
from detcloud.shared.masking import mask_all_urls

_HPARAMS: Final = "hyperparameters"
# Sections with a kind: the kind has a default, and decides the meaning of all fields.
_VARIANTS: Final = frozenset({"searcher", "checkpoint_storage", "data_layer"})
STATED_BYTES_MAX: Final = 16_384
"""The most bytes of stated fields as JSON. More stated fields are not stored."""


def stated_fields_of(tree: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a configuration without defaults.

    The value of a map is the map of its fields. Other values, and empty maps, are True. Return {}
    if the result would have more than STATED_BYTES_MAX bytes.
    """
    stated = _fields_of(tree)
    size = len(json.dumps(stated, separators=(",", ":"), ensure_ascii=False).encode())
    return stated if size <= STATED_BYTES_MAX else {}


def submitted_values(
    config: ExperimentConfig, stated_fields: Mapping[str, object]
) -> dict[str, Any]:
    """Return the configuration's values as JSON without the defaults, with secrets masked.

    Args:
        config: the checked configuration.
        stated_fields: the result of `stated_fields_of`. If empty, the values that differ from
            the defaults of the release are returned.
    """
    if stated_fields:
        return _select(config.masked_values(), stated_fields)
    changed = mask_all_urls(config.model_dump(mode="json", exclude_defaults=True))
    for name in _VARIANTS & changed.keys():
        whole = config.masked_values()[name]
        changed[name] = {field: value for field, value in whole.items() if value is not None}
    changed[_HPARAMS] = _shorten_constants(config.masked_values()[_HPARAMS])
    return {name: value for name, value in changed.items() if value not in ({}, [], None, "")}


def _fields_of(tree: Mapping[str, Any], loc: Loc = ()) -> dict[str, object]:
    """Return the fields of a map: the fields of each map in the map, and True for other values.

    Null leaves a field to its default, except in hyperparameters.
    """
    return {
        str(name): _fields_of(value, (*loc, name)) if isinstance(value, Mapping) and value else True
        for name, value in tree.items()
        if value is not None or loc[:1] == (_HPARAMS,)
    }


def _select(
    values: Mapping[str, Any], stated: Mapping[str, object], loc: Loc = ()
) -> dict[str, Any]:
    """Return the stated values, in the order of the stated fields.

    Stated fields that the configuration lacks, and fields with null, are left out. Null is a value
    in hyperparameters. Constant hyperparameters have the submitted form. A map with stated fields
    under other names is returned whole.

    Args:
        values: the values of the section at `loc`.
        stated: the stated fields of the section.
        loc: the path of the section.
    """
    chosen: dict[str, Any] = {}
    for name, part in stated.items():
        value, inner = values.get(name), (*loc, name)
        is_parameter = loc[:1] == (_HPARAMS,)
        if isinstance(part, Mapping) and isinstance(value, Mapping) and part.keys() <= value.keys():
            chosen[name] = _select(value, part, inner)
        elif is_parameter and name in values:
            chosen[name] = value if isinstance(part, Mapping) else _shorten_constants(value)
        elif value is not None:
            chosen[name] = value
    return chosen


def _shorten_constants(value: Any) -> Any:
    """Return a hyperparameter or a group in which `{type: const, val: VALUE}` is VALUE.

    A checked configuration has the long form of each constant.
    """
    match value:
        case {"type": "const", "val": constant} if not isinstance(constant, Mapping):
            return constant
        case {**members} if "type" not in members:
            return {name: _shorten_constants(member) for name, member in members.items()}
    return value
