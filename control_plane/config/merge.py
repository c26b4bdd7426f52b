"""Lays configurations over one another, and single values over a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Final

from control_plane.config.environment import (
    DEVICE_KINDS,
    FORMER_KINDS,
    PER_DEVICE,
    VARIABLES_LOC,
    is_variable,
)
from control_plane.config.eras import PERIODS, EraRules, Tree
from control_plane.config.problems import ConfigInvalid
from control_plane.config.searcher import SearcherSection
from control_plane.config.storage import CheckpointStorage
from control_plane.config.yaml_document import DEPTH_MAX, parse_document
from control_plane.findings import Finding, Loc
from detcloud.shared.json_depth import is_too_deep

_TAGS: Final[Mapping[Loc, str]] = {
    ("searcher",): "name",
    ("checkpoint_storage",): "type",
    ("data_layer",): "type",
    ("tensorboard_storage",): "type",
}
_SHARED: Final[Mapping[Loc, Set[str]]] = {
    ("searcher",): SearcherSection.model_fields.keys(),
    ("checkpoint_storage",): CheckpointStorage.model_fields.keys(),
}

# Merged field by field, a login would send one layer's secret to the other one's server, and a
# length would be in two units.
_WHOLE: Final[Set[Loc]] = {
    ("environment", "registry_auth"),
    *((name,) for name in PERIODS),
    *(("searcher", name) for name in ("max_length", "budget", "length_per_round")),
}


def merge_trees(upper: Any, lower: Any, rules: EraRules, loc: Loc = ()) -> Any:
    """Merge `upper` over `lower`: maps merge; other values, logins, lengths and hyperparameters
    replace.

    A map that chooses another kind of searcher or storage takes from the lower one only what all
    kinds share, like a metric or the number of checkpoints to keep. Groups of hyperparameters
    merge, and null is a hyperparameter's value.
    The arguments are not changed; the result may share values with them.
    """
    is_parameter = loc[:1] == ("hyperparameters",) and len(loc) > 1
    if upper is None and not rules.null_hides and not is_parameter:
        return lower
    if loc in rules.appended:
        upper, lower = _to_one_form(upper, lower, loc)
        if isinstance(upper, list) and isinstance(lower, list):
            return _append_entries(upper, lower, _IDENTITIES[loc[:2]])
    if not isinstance(upper, Mapping) or not isinstance(lower, Mapping) or loc in _WHOLE:
        return upper
    if is_parameter and _is_other_parameter(upper, lower, rules):
        return upper
    if _is_other_kind(upper, lower, loc):
        shared = _SHARED.get(loc, frozenset())
        lower = {key: value for key, value in lower.items() if key in shared}
    result = {**lower, **upper}
    if loc in PER_DEVICE:
        for former, kind in FORMER_KINDS.items():
            result = _drop_synonym(result, upper, former, kind)
    for key in upper.keys() & lower.keys():
        result[key] = merge_trees(upper[key], lower[key], rules, (*loc, key))
    return result


def apply_override(tree: Tree, override: str) -> tuple[Tree, Loc, Finding | None]:
    """Apply `a.b.c=VALUE`, VALUE being YAML; return the tree, the place, and what was wrong."""
    path, equals, text = override.partition("=")
    loc: Loc = tuple(path.strip().split("."))
    if not equals or not all(loc) or len(loc) > DEPTH_MAX:
        return tree, (), Finding(loc, "is not of the form path.to.field=value")
    try:
        document = parse_document(text)
    except ConfigInvalid as error:
        return tree, loc, Finding(loc, error.problems[0].message)
    if document.findings:
        first = document.findings[0]
        return tree, loc, Finding((*loc, *first.loc), first.message, first.hint)
    if is_too_deep(document.tree, DEPTH_MAX - len(loc)):
        return tree, loc, Finding(loc, f"is nested deeper than {DEPTH_MAX} levels")
    return _set_value(tree, loc, document.tree, loc)


def _is_other_parameter(upper: Tree, lower: Tree, rules: EraRules) -> bool:
    """Whether a hyperparameter says all of itself: it has a type, or is a group over one that has.
    Where there are no groups, a map without a type changes the lower one's fields.
    """
    return "type" in upper or (rules.nested_hyperparameters and "type" in lower)


def _is_other_kind(upper: Tree, lower: Tree, loc: Loc) -> bool:
    tag = _TAGS.get(loc)
    if tag is None or tag not in upper:
        return False
    return bool(upper[tag] != lower.get(tag, upper[tag]))


def _append_entries(
    upper: list[Any], lower: list[Any], identity: Callable[[object], object]
) -> list[Any]:
    """Return the upper entries, and those of the lower ones that stand for something else."""
    taken = {text for text in map(identity, upper) if isinstance(text, str)}
    return upper + [entry for entry in lower if identity(entry) not in taken]


def _to_one_form(upper: Any, lower: Any, loc: Loc) -> tuple[Any, Any]:
    """Return what may be a list or a map in one form: both as they are where that is one already,
    or where a value is wrong, which the validation tells.
    """
    if isinstance(upper, list) and isinstance(lower, list):
        return upper, lower
    if loc == VARIABLES_LOC:
        above, below = _variables_by_device(upper), _variables_by_device(lower)
        return (upper, lower) if above is None or below is None else (above, below)
    if loc == ("labels",) and isinstance(upper, list) and isinstance(lower, Mapping):
        return upper, [name for name, kept in lower.items() if kept is True]
    if loc == ("labels",) and isinstance(lower, list) and isinstance(upper, Mapping):
        return upper, dict.fromkeys((text for text in lower if isinstance(text, str)), True)
    return upper, lower


def _variables_by_device(value: object) -> dict[str, list[Any]] | None:
    """Return lists of variables by kind of device; None for what is no such thing."""
    if isinstance(value, list):
        value = dict.fromkeys(DEVICE_KINDS, value)
    if not isinstance(value, Mapping):
        return None
    given = {key: variables for key, variables in value.items() if variables is not None}
    by_device = {FORMER_KINDS.get(key, key): variables for key, variables in given.items()}
    is_valid = len(by_device) == len(given) and all(
        kind in DEVICE_KINDS and isinstance(variables, list) and all(map(is_variable, variables))
        for kind, variables in by_device.items()
    )
    return by_device if is_valid else None


def _container_path(entry: object) -> object:
    if isinstance(entry, Mapping):
        return entry.get("container_path")
    return entry.split(":")[1] if isinstance(entry, str) and ":" in entry else None


def _variable_name(entry: object) -> object:
    return entry.partition("=")[0] if isinstance(entry, str) else None


def _drop_synonym(result: dict[str, Any], upper: Tree, former: str, kind: str) -> dict[str, Any]:
    """Drop the lower layer's name of a kind of device where the upper layer uses the other one."""
    if former in upper and kind not in upper:
        result.pop(kind, None)
    if kind in upper and former not in upper:
        result.pop(former, None)
    return result


def _set_value(tree: Tree, rest: Loc, value: object, loc: Loc) -> tuple[Tree, Loc, Finding | None]:
    key, *below = rest
    if not below:
        return {**tree, str(key): value}, loc, None
    child = tree.get(str(key))
    if child is None:
        child = {}
    if not isinstance(child, Mapping):
        place = loc[: len(loc) - len(below)]
        return tree, loc, Finding(place, "is not a map, so no field can be set in it")
    changed, _, finding = _set_value(child, tuple(below), value, loc)
    return {**tree, str(key): changed}, loc, finding


_IDENTITIES: Final[Mapping[Loc, Callable[[object], object]]] = {
    ("bind_mounts",): _container_path,
    ("resources", "devices"): _container_path,
    ("labels",): lambda entry: entry,
    VARIABLES_LOC: _variable_name,
}
"""What tells the entries of the lists apart to which a lower layer adds its own."""
