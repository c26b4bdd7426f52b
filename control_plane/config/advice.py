"""Warnings about valid settings that may not have the effect that the author expects."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.hyperparameters import Const, Int, Log, leaf_parameters
from control_plane.config.images import image_warnings
from control_plane.config.resources import Resources
from control_plane.field_types import BATCH_SIZE
from control_plane.findings import Loc, path_text, value_text
from control_plane.searchers.randomness import Generator
from control_plane.searchers.registry import searcher_spec
from control_plane.searchers.space import draw_hparams
from detcloud.shared.launcher_names import trial_class_of
from detcloud.shared.shell_names import is_shell_name
from detcloud.shared.unused_settings import unused_setting_notices

# Every trial class reports the time metrics `batches` and `epochs` without help from its user.
TIME_METRICS_OF_TRIALS = ("batches", "epochs")

VARIABLES_OF_IMAGES = ("HOME", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONPATH", "USER")
# A hyperparameter of at least this size is probably a mistake.
IMPLAUSIBLE: Final = 1e15
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)


def config_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield the warnings about a valid configuration.

    A setting causes a warning if the cluster ignores or replaces it, or if it is probably a
    mistake.
    """
    yield from image_warnings(config)
    yield from _expansion_warnings(config)
    yield from _shell_name_warnings(config)
    yield from _draw_warnings(config)
    yield from _exponent_warnings(config)
    yield from _likeness_warnings(config)
    yield from _upper_bound_warnings(config)
    yield from _batch_size_warnings(config)
    yield from _time_metric_warnings(config)
    yield from _overruled_warnings(config)
    yield from _patience_warnings(config)
    yield from unused_setting_notices(_values_with_variables(config))


def _values_with_variables(config: ExperimentConfig) -> dict[str, Any]:
    """Return all values as JSON, with secrets masked except in the environment variables.

    The result is for comparisons only: messages must not contain the values of the variables.
    """
    values = config.masked_values()
    variables = config.environment.environment_variables.reveal()
    return {**values, "environment": {**values["environment"], "environment_variables": variables}}


def _expansion_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each variable with `$NAME` or `${NAME}` in the value.

    NAME must be a variable of VARIABLES_OF_IMAGES or an earlier variable of the same device kind. A
    shell would replace the reference, but trials receive the value unchanged. A variable causes at
    most a single warning, which mentions the first reference.
    """
    by_device = config.environment.environment_variables.reveal()
    told: set[str] = set()
    for variables in by_device.values():
        known = set(VARIABLES_OF_IMAGES)
        for name, _, value in (variable.partition("=") for variable in variables):
            used = next((item for item in _REFERENCE.findall(value) if item in known), None)
            known.add(name)
            if used is not None and name not in told:
                told.add(name)
                yield (
                    f"environment.environment_variables: ${used} in {name} is handed on as it is "
                    "written; startup-hook.sh can export a value that refers to others"
                )


def _shell_name_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each variable with a name that shells do not allow, sorted by name."""
    by_device = config.environment.environment_variables.reveal()
    names = {variable.partition("=")[0] for each in by_device.values() for variable in each}
    for name in sorted(names):
        if not is_shell_name(name):
            yield (
                f"environment.environment_variables: {name} reaches the trial, but shells cannot "
                "read it, and scripts for sh do not pass it on; use letters, digits and _"
            )


def _draw_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each hyperparameter that a search of a single trial draws at random.

    The warning contains the drawn value. Constants cause no warning. Yield nothing unless
    `space_use` of the searcher is "constant", as for `single`.
    """
    name, seed = config.searcher.name, config.experiment_seed
    if searcher_spec(name).space_use != "constant":
        return
    drawn = _first_draw(config)
    for loc, parameter in leaf_parameters(config.hyperparameters):
        if not isinstance(parameter, Const):
            value: Any = drawn
            for key in loc[1:]:
                value = value[key]
            yield (
                f"{path_text(loc)}: the {name} searcher draws one value, which is "
                f"{value_text(value)} with reproducibility.experiment_seed {seed}; without that "
                "setting each creation draws another one. Write a constant, or use the random "
                "searcher to try several values"
            )


def _first_draw(config: ExperimentConfig) -> Mapping[str, object]:
    """Return the hyperparameters of the first trial, drawn with the experiment's seed, by name.

    A group of hyperparameters is a nested map.
    """
    plan = config.search_plan()
    generator = Generator.from_seed(plan.seed)
    return draw_hparams(plan.space, generator, maxval_drawn=plan.method.rules.maxval_drawn)


def _exponent_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each logarithmic range with values in place of exponents.

    The warning contains the exponents for these values.
    """
    for loc, parameter in leaf_parameters(config.hyperparameters):
        if isinstance(parameter, Log) and _has_values_as_exponents(parameter):
            base, lower, upper = parameter.base, parameter.minval, parameter.maxval
            meant = [math.log(bound) / math.log(base) for bound in (lower, upper)]
            yield (
                f"{path_text(loc)}: minval and maxval are exponents of base {base:g}, so it draws "
                f"from {base**lower:.4g} to {base**upper:.4g}; for values from {lower:g} to "
                f"{upper:g} write minval: {meant[0]:.6g}, maxval: {meant[1]:.6g}"
            )


def _has_values_as_exponents(parameter: Log) -> bool:
    """Return whether minval and maxval of a logarithmic range are probably values, not exponents.

    Return True in these cases, if base > 1 and minval > 0:
    - maxval is at most 1 and at least `base` times minval. As exponents, these bounds would draw
      almost equal values.
    - minval is at least 1 and base**maxval is at least IMPLAUSIBLE.
    """
    base, lower, upper = parameter.base, parameter.minval, parameter.maxval
    if base <= 1 or lower <= 0:
        return False
    is_small = upper <= 1 and upper / lower >= base * (1 - 1e-9)
    return is_small or (lower >= 1 and base**upper >= IMPLAUSIBLE)


def _likeness_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each hyperparameter with the dotted path of an earlier hyperparameter.

    For example, the name `a.b` at the top collides with the name `b` in a group `a`.
    """
    known: dict[str, Loc] = {}
    for loc, _ in leaf_parameters(config.hyperparameters):
        text = ".".join(map(str, loc))
        if text in known:
            yield (
                f"{path_text(loc)}: is another hyperparameter than {path_text(known[text])}, and "
                "a trial gets both; remove one of them"
            )
        known.setdefault(text, loc)


def _upper_bound_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each integer range, because the step era never draws the upper bound.

    Yield nothing in the length era, and unless `space_use` of the searcher is "sampled". For
    example, `grid` and `single` do not sample.
    """
    spec = searcher_spec(config.searcher.name)
    if config.era is not Era.STEP or spec.space_use != "sampled":
        return
    for loc, parameter in leaf_parameters(config.hyperparameters):
        if isinstance(parameter, Int):
            yield (
                f"{path_text(loc)}: {parameter.maxval} is never drawn where lengths are in steps; "
                f"write maxval: {parameter.maxval + 1} to draw it too"
            )


def _batch_size_warnings(config: ExperimentConfig) -> Iterator[str]:
    if BATCH_SIZE in config.hyperparameters:
        return
    is_class = config.entrypoint is not None and trial_class_of(config.entrypoint)
    more = "" if is_class else "; a script written for Determined receives this length unchanged"
    converted = ("records", "epochs") if config.scale.records_per_epoch else ("records",)
    for loc, length in config.lengths().items():
        if length.count and length.unit in converted:
            yield (
                f"{path_text(loc)}: without hyperparameters.{BATCH_SIZE} a batch counts as one "
                f"record{more}"
            )


def _time_metric_warnings(config: ExperimentConfig) -> Iterator[str]:
    names_class = config.entrypoint is not None and trial_class_of(config.entrypoint)
    if names_class and config.time_metric not in ("", *TIME_METRICS_OF_TRIALS):
        yield (
            f"searcher.time_metric: each validation of {names_class} must return "
            f"{config.time_metric!r} among its metrics, or the experiment ends in an error; "
            f"{' and '.join(TIME_METRICS_OF_TRIALS)} are always reported"
        )


def _overruled_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each searcher option that has no effect because of another option.

    - `max_length` has no effect with `max_time`, and `time_metric` has none without `max_time`.
    - `source_checkpoint_uuid` has no effect with `source_trial_id`.
    - `mode` and `max_rungs` have no effect with `bracket_rungs`. Default values cause no warning.
    """
    options = config.searcher.model_dump()
    if options.get("max_time") is not None and options.get("max_length") is not None:
        yield "searcher.max_length is not used: max_time says how long a trial trains"
    if options.get("time_metric") is not None and options.get("max_time") is None:
        yield "searcher.time_metric is not used: it measures max_time, which is not given"
    if config.searcher.source_trial_id is not None and config.searcher.source_checkpoint_uuid:
        yield (
            "searcher.source_checkpoint_uuid is not used: source_trial_id says where trials start; "
            "set one of them"
        )
    if options.get("bracket_rungs"):
        for name in ("mode", "max_rungs"):
            if options[name] != type(config.searcher).model_fields[name].default:
                yield f"searcher.{name} is not used: bracket_rungs says how many rungs there are"


def _patience_warnings(config: ExperimentConfig) -> Iterator[str]:
    resources = config.resources
    default = Resources.model_fields["pool_patience"].default
    if resources.pool_patience != default and len(resources.pools) == 1:
        yield (
            "resources.pool_patience is not used: the job waits in its one pool; a list of "
            "resources.resource_pool names others to go on to"
        )
