"""Rewrites a step-era configuration in the length form: steps become batches.

Where the eras read the same text differently, the former reading is written out: defaults, how many
trials run at once, and integers, whose maxval the step era never drew outside a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from control_plane.config.check import check, read_layers
from control_plane.config.eras import PERIODS, STEP_ERA, Era, Tree
from control_plane.config.merge import merged
from control_plane.config.yaml_document import FLOAT, INTEGER

_RENAMED: Final = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "length_per_round",
}
_CONCURRENT: Final = frozenset({"random", "grid", "async_halving", "adaptive_asha"})
_KEPT_DEFAULTS: Final = ("optimizations",)


def migrate(text: str, *, overrides: Sequence[str] = ()) -> str:
    """The configuration in the length form, as YAML without comments.

    A configuration of the length era comes back with the same content.

    Raises:
        ConfigInvalid: the configuration has problems of its own.
    """
    config = check(text, overrides=overrides)
    tree = read_layers(text, overrides=overrides).user
    if config.era is Era.STEP:
        tree = _lengthened(tree, config.workload_batches)
    return yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


def _lengthened(tree: Tree, batches_per_step: int) -> Tree:
    changed: dict[str, Any] = {}
    grid = tree["searcher"]["name"] == "grid"
    for key, value in tree.items():
        if value is None:
            continue
        if key == "searcher":
            changed[key] = _searcher(value, batches_per_step)
        elif key == "hyperparameters" and not grid:
            changed[key] = {name: _parameter(it) for name, it in value.items()}
        elif key == "batches_per_step":
            changed["scheduling_unit"] = value
        elif key in PERIODS:
            changed[key] = {"batches": value * batches_per_step}
        else:
            changed[key] = value
    for key in _KEPT_DEFAULTS:
        changed[key] = merged(changed.get(key, {}), STEP_ERA.defaults[key], STEP_ERA)
    return changed


def _searcher(searcher: Tree, batches_per_step: int) -> Tree:
    changed = {
        _RENAMED.get(key, key): {"batches": value * batches_per_step} if key in _RENAMED else value
        for key, value in searcher.items()
        if value is not None
    }
    if searcher["name"] in _CONCURRENT:
        changed.setdefault("max_concurrent_trials", 0)
    return changed


def _parameter(parameter: Any) -> Any:
    if not isinstance(parameter, Mapping) or parameter["type"] != "int":
        return parameter
    if parameter["maxval"] - parameter["minval"] == 1:
        return {"type": "const", "val": parameter["minval"]}
    return {**parameter, "maxval": parameter["maxval"] - 1}


class _Dumper(yaml.SafeDumper):
    """Quotes what any reader of YAML, ours included, could take for a number; writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value where it stands."""
        return True


_STARTS: Final = list("-+.0123456789")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, _STARTS)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, _STARTS)
