"""The migration of configurations from the step era to the length era: steps become batches.

The eras differ in the meaning of some fields. The migrated configuration keeps the former meaning:
it contains the former defaults and the former number of concurrent trials. Ranges of integers end
at maxval - 1, because the step era draws maxval only in a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from control_plane.config.check import check_config, read_layers
from control_plane.config.eras import PERIODS, STEP_ERA, Era, Tree
from control_plane.config.merge import merge_trees
from control_plane.config.searcher import searcher_model
from control_plane.config.yaml_document import FLOAT, INTEGER
from control_plane.field_types import to_integer
from control_plane.searchers.registry import searcher_spec

_RENAMED: Final = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "length_per_round",
}
_CONCURRENT: Final = "max_concurrent_trials"
_KEPT_DEFAULTS: Final = ("optimizations",)


def migrate_config(text: str, *, overrides: Sequence[str] = ()) -> str:
    """Convert a configuration of the step era to the length era, as YAML without comments.

    A configuration of the length era keeps its content. The length era has lengths in batches,
    records or epochs instead of steps.

    Args:
        text: the configuration as YAML, which may contain masks in place of secrets.
        overrides: assignments `a.b.c=VALUE`, which become part of the result.

    Raises:
        ConfigInvalid: the configuration is invalid.
    """
    config = check_config(text, overrides=overrides, accepts_masks=True)
    tree = read_layers(text, overrides=overrides).user
    if config.era is Era.STEP:
        tree = _convert_config(tree, config.workload_batches)
    written = _render_yaml(tree, allow_unicode=True)
    # PyYAML does not escape marks of writing direction, which could hide text in a terminal.
    is_plain = all(line.isprintable() for line in written.splitlines())
    return written if is_plain else _render_yaml(tree, allow_unicode=False)


def _render_yaml(tree: Tree, *, allow_unicode: bool) -> str:
    return yaml.dump(
        tree,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=allow_unicode,
        default_flow_style=False,
    )


def _convert_config(tree: Tree, batches_per_step: int) -> Tree:
    changed: dict[str, Any] = {}
    is_grid = searcher_spec(tree["searcher"]["name"]).space_use == "grid"
    for key, value in tree.items():
        if value is None:
            continue
        if key == "searcher":
            changed[key] = _convert_searcher(value, batches_per_step)
        elif key == "hyperparameters" and not is_grid:
            changed[key] = {name: _convert_parameter(item) for name, item in value.items()}
        elif key == "batches_per_step":
            changed["scheduling_unit"] = value
        elif key in PERIODS:
            changed[key] = {"batches": to_integer(value) * batches_per_step}
        else:
            changed[key] = value
    for key in _KEPT_DEFAULTS:
        changed[key] = merge_trees(changed.get(key, {}), STEP_ERA.defaults[key], STEP_ERA)
    return changed


def _convert_searcher(searcher: Tree, batches_per_step: int) -> Tree:
    changed = {
        _RENAMED.get(key, key): (
            {"batches": to_integer(value) * batches_per_step} if key in _RENAMED else value
        )
        for key, value in searcher.items()
        if value is not None
    }
    former = _default_concurrency(searcher["name"], Era.STEP)
    if former != _default_concurrency(searcher["name"], Era.LENGTH):
        changed.setdefault(_CONCURRENT, former)
    return changed


def _default_concurrency(searcher: str, era: Era) -> int:
    """Return the default of `max_concurrent_trials` of a searcher, or 0 without this option.

    Raise KeyError if the era lacks the searcher.
    """
    field = searcher_model(searcher, era).model_fields.get(_CONCURRENT)
    return 0 if field is None else field.default


def _convert_parameter(parameter: Any) -> Any:
    """Convert a valid hyperparameter of the step era to the length era, with equal values drawn.

    The maxval of an integer range becomes maxval - 1, because the length era draws maxval, too. A
    range of a single integer becomes a constant. Return other hyperparameters unchanged.
    """
    if not isinstance(parameter, Mapping) or parameter["type"] != "int":
        return parameter
    least, end = to_integer(parameter["minval"]), to_integer(parameter["maxval"])
    if end - least == 1:
        return {"type": "const", "val": least}
    return {**parameter, "minval": least, "maxval": end - 1}


class _Dumper(yaml.SafeDumper):
    """A YAML writer that quotes texts which a YAML parser may read as numbers.

    It writes repeated values in full instead of as aliases.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that repeated values are written in full."""
        return True


_STARTS: Final = list("-+.0123456789")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, _STARTS)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, _STARTS)
