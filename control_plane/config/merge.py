"""The merge of configuration layers, and overrides of single fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

from control_plane.config.environment import (
    DEVICE_KINDS,
    FORMER_KINDS,
    PER_DEVICE,
    SHOWN_LOC,
    VARIABLES_LOC,
    is_variable,
)
from control_plane.config.eras import PERIODS, EraRules, Tree
from control_plane.config.log_policies import policy_identity
from control_plane.config.problems import ConfigInvalid
from control_plane.config.searcher import SearcherSection
from control_plane.config.storage import CheckpointStorage
from control_plane.config.yaml_document import DEPTH_MAX, parse_document
from control_plane.findings import Finding, Loc
from detcloud.shared.dotted_paths import FORM, PathInvalid, resolve_path, split_assignment
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

# Logins and lengths replace the lower map as a whole. A merged login could send a layer's secret to
# the server of another layer, and a merged length would have two units.
_WHOLE: Final[Set[Loc]] = {
    ("environment", "registry_auth"),
    *((name,) for name in PERIODS),
    *(("searcher", name) for name in ("max_length", "budget", "length_per_round")),
}


def merge_trees(upper: Any, lower: Any, rules: EraRules, loc: Loc = ()) -> Any:
    """Return `upper` merged over `lower`. The arguments are not changed.

    The result may share values with the arguments. The rules:
    - Maps are merged key by key. Any other value of `upper` replaces the value of `lower`.
    - In maps by kind of device, a former and a present name of a kind are the same key.
    - Registry logins, lengths and hyperparameters with a type replace the lower map as a whole.
      Groups of hyperparameters are merged.
    - A map with another kind of searcher or storage keeps only the fields of `lower` that all kinds
      have, such as the metric or the number of checkpoints to keep.
    - Lists in `rules.appended` get the lower entries with other identities at the end.
    - A null in `upper` yields the lower value unless `rules.null_hides`. In a hyperparameter, null
      is a value and replaces the lower value.

    Args:
        loc: the path of both values from the root of the configuration.
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


def apply_override(
    tree: Tree, override: str, lower: Sequence[Tree] = ()
) -> tuple[Tree, Loc, Finding | None]:
    """Set a field of a layer by an assignment `a.b.c=VALUE`, with VALUE in YAML.

    Return the changed copy of the layer, the path of the field, and None. If the assignment is
    invalid, return the unchanged `tree`, the path or (), and the finding. Missing maps on the path
    are created.

    Args:
        override: the assignment. The path has the form of detcloud.shared.dotted_paths.
        lower: the layers below `tree`. A key with dots in any layer makes `model.layers` mean the
            key "model.layers".
    """
    try:
        path, text = split_assignment(override)
        loc: Loc = resolve_path(path, (tree, *lower))
    except PathInvalid as error:
        # The value may be a secret.
        return tree, (), Finding((override.partition("=")[0].strip(),), str(error))
    if len(loc) > DEPTH_MAX:
        message = f"is not of the form {FORM}, with at most {DEPTH_MAX} names"
        return tree, (), Finding(loc, message)
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
    """Return whether the upper hyperparameter replaces the lower as a whole instead of merging.

    True if `upper` has a type, or if `upper` is a group and `lower` has a type. In the step era,
    which has no groups, a map without a type changes single fields of the lower hyperparameter.
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
    """Return the upper entries, followed by the lower entries with other identities.

    Args:
        identity: returns the text by which entries are compared, such as the name of a variable.
            Entries without a text are always kept.
    """
    taken = {text for text in map(identity, upper) if isinstance(text, str)}

    def is_taken(entry: object) -> bool:
        # The identity of an invalid entry may be a map or a list, which cannot be in a set.
        text = identity(entry)
        return isinstance(text, str) and text in taken

    return upper + [entry for entry in lower if not is_taken(entry)]


def _to_one_form(upper: Any, lower: Any, loc: Loc) -> tuple[Any, Any]:
    """Return the values of the upper and the lower layer in a common form for the merge.

    Variables become maps of lists by kind of device, unless both values are lists. Labels get the
    form of the upper value. Return both unchanged for other fields, for two lists, and for invalid
    values, which the validation reports.
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
    """Return lists of variables by present kinds of device, from a list or a map by kind.

    A list stands for all kinds. A kind with null is left out. Return None for an invalid value.
    """
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
    """Remove a superseded name of a kind of device from `result`, and return `result`.

    `former` or `kind` is removed if `upper` uses only the other name. The value is then from the
    lower layer.

    Args:
        result: the merged map by kind, which is changed.
    """
    if former in upper and kind not in upper:
        result.pop(kind, None)
    if kind in upper and former not in upper:
        result.pop(former, None)
    return result


def _set_value(tree: Tree, rest: Loc, value: object, loc: Loc) -> tuple[Tree, Loc, Finding | None]:
    """Set a value in a copy of nested maps. Return the copy, `loc` and None.

    Missing maps and nulls on the path become maps. If another value on the path is not a map,
    return `tree`, `loc` and a finding at this value.

    Args:
        rest: the path from `tree`.
        loc: the whole path from the root of the configuration, of which `rest` is the end.
    """
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
    ("log_policies",): policy_identity,
    SHOWN_LOC: lambda entry: entry,
    VARIABLES_LOC: _variable_name,
}
"""The identities of the entries of merged lists, by the path of the list. Of equal identities, only
the upper layer's entry is kept.
"""
