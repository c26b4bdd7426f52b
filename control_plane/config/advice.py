"""Warnings of settings that are accepted and may not do what their author thinks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from control_plane.config.eras import RULES, Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.hyperparameters import Const, Int, leaf_parameters
from control_plane.config.images import image_warnings
from control_plane.config.resources import Resources
from control_plane.field_types import BATCH_SIZE
from control_plane.findings import path_text
from control_plane.searchers.registry import searcher_spec
from detcloud.shared.launcher_names import trial_class_of
from detcloud.shared.unused_settings import unused_setting_notices

# The time metrics that every trial class has.
TIME_METRICS_OF_TRIALS = ("batches", "epochs")

VARIABLES_OF_IMAGES = ("HOME", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONPATH", "USER")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)


def config_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each setting of a configuration that its author may misread."""
    yield from image_warnings(config)
    yield from _expansion_warnings(config)
    yield from _draw_warnings(config)
    yield from _upper_bound_warnings(config)
    yield from _batch_size_warnings(config)
    yield from _time_metric_warnings(config)
    yield from _overruled_warnings(config)
    yield from _patience_warnings(config)
    yield from unused_setting_notices(config.model_dump(mode="json"))


def _expansion_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each variable that refers to one which is set before it, or to one that
    images set, as a shell would read it.
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


def _draw_warnings(config: ExperimentConfig) -> Iterator[str]:
    name = config.searcher.name
    is_single = searcher_spec(name).space_use == "constant"
    if not is_single or not RULES[config.era].single_constants:
        return
    for loc, parameter in leaf_parameters(config.hyperparameters):
        if not isinstance(parameter, Const):
            yield (
                f"{path_text(loc)}: the {name} searcher draws one of its values; the random "
                "searcher tries several"
            )


def _upper_bound_warnings(config: ExperimentConfig) -> Iterator[str]:
    """Yield a warning for each range of integers whose upper bound its search never draws."""
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
    """Yield a warning for each option of the search that another one takes the place of."""
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
