"""Wrong values in each field of both references are refused at the right place.

The refusal shows the value and the expected form.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.environment import Environment, RegistryAuth
from control_plane.config.eras import Era
from control_plane.config.experiment import LengthConfig, StepConfig
from control_plane.config.hyperparameters import PARAMETER_TYPES
from control_plane.config.pools import (
    ClusterConfig,
    ResourceManager,
    ResourcePool,
    Scheduler,
    check_cluster,
)
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.provider_types import PROVIDERS
from control_plane.config.providers import OfferingConfig
from control_plane.config.resources import BindMount, Device, Resources
from control_plane.config.schedule import Schedule
from control_plane.config.searcher import searcher_model, searcher_names
from control_plane.config.section import Section
from control_plane.config.storage import LAYERS, storage_models
from control_plane.config.task_container_defaults import TaskContainerDefaults
from control_plane.config.training import Debugger, Optimizations, Profiling, Reproducibility
from control_plane.field_types import to_integer
from control_plane.findings import Loc, path_text, value_text
from tests.unit.config.samples import LENGTH, STEP

WRONG: tuple[Any, ...] = (
    *(True, 3, -7, 2.5, -1e30, 10**22),
    *("", "wrong text\x07", "9" * 3_000, "2001-01-01"),
    *([], [None, [{}]], [1, "a"], {}, {"x": {"y": 1}}, None),
)
TEXT_MAX = 600
FOLDER = {"host_path": "/a", "container_path": "/b"}
BASES = {
    Era.STEP: STEP,
    Era.LENGTH: {**LENGTH, "records_per_epoch": 9, "hyperparameters": {"global_batch_size": 64}},
}
POOL = ("resource_pools", 0)
# Messages for values that affect the check of other places.
JUDGED_ELSEWHERE = (
    *("mixes the eras", "is required", "must be set together", "must not be used"),
    "must be one of resource_pools",
)
# Messages without the value: no scalar, a possible secret, or no information.
WITHOUT_VALUE = (
    *("must be a map", "must be a list", "must not be empty", "must be a non-empty string"),
    *("must have at most", "is required", "is not a known", "must be set together", "mixes the"),
    *("must be of the form NAME=VALUE", "is not a kind of device", "must not be used"),
    *("is an integer beyond 64 bits", "applies to the priority scheduler", "needs the reservation"),
    "must be certificates, each from BEGIN to END CERTIFICATE",
)


def experiment_sections() -> Iterator[tuple[Era, Loc, type[Section], dict[str, Any]]]:
    """Yield each section of an experiment: era, place, model and required fields."""
    for era in Era:
        yield era, (), StepConfig if era is Era.STEP else LengthConfig, {}
        for name, storage in storage_models().items():
            yield era, ("checkpoint_storage",), storage, {"type": name}
        for name, layer in LAYERS.items():
            yield era, ("data_layer",), layer, {"type": name}
        for name, parameter in PARAMETER_TYPES.items():
            yield era, ("hyperparameters", "h"), parameter, {"type": name}
        for name in searcher_names(era):
            yield era, ("searcher",), searcher_model(name, era), {"name": name, "metric": "loss"}
        yield era, ("resources",), Resources, {}
        yield era, ("resources", "devices", 0), Device, FOLDER
        yield era, ("bind_mounts", 0), BindMount, FOLDER
        yield era, ("environment",), Environment, {}
        yield era, ("environment", "registry_auth"), RegistryAuth, {}
        yield era, ("optimizations",), Optimizations, {}
        yield era, ("profiling",), Profiling, {}
        yield era, ("debugger",), Debugger, {}
        yield era, ("schedule",), Schedule, {"cron": "0 3 * * *"}
        yield era, ("reproducibility",), Reproducibility, {}


def cluster_sections() -> Iterator[tuple[Loc, type[Section], dict[str, Any]]]:
    """Yield each section of a cluster configuration: place, model and required fields."""
    yield (), ClusterConfig, {}
    yield ("resource_manager",), ResourceManager, {}
    yield ("resource_manager", "scheduler"), Scheduler, {}
    yield ("task_container_defaults",), TaskContainerDefaults, {}
    yield POOL, ResourcePool, {}
    for name, provider in PROVIDERS.items():
        yield (*POOL, "provider"), provider, {"type": name}
        yield (*POOL, "provider", "offerings", 0), OfferingConfig, {"instance_type": "a"}
        for _, place, section in provider.reference_sections:
            if place.isidentifier():
                yield (*POOL, "provider", place), section, {}


def put_value(tree: dict[str, Any], loc: Loc, value: object) -> dict[str, Any]:
    """Return a copy of a tree with a value at a place; missing maps and lists are created."""
    changed: Any = copy.deepcopy(tree)
    here = changed
    for key, following in pairwise(loc):
        empty: Any = [{}] if isinstance(following, int) else {}
        here = here[int(key)] if isinstance(here, list) else here.setdefault(key, empty)
    here[loc[-1]] = value
    return dict(changed)


def find_faults(problems: tuple[Problem, ...], place: str, value: object) -> Iterator[str]:
    """Yield the faults of the refusal of a value at a place."""
    for problem in problems:
        text = problem.text("f")
        if len(text) > TEXT_MAX or not text.isprintable():
            yield f"cannot be read: {text!r}"
        if "should" in problem.message or "Input" in problem.message:
            yield f"is not in our words: {text}"
        is_scalar = isinstance(value, str | int | float)
        shown = {value_text(value), value_text(to_integer(value)), str(value or "?")}
        is_valued = any(name in problem.message for name in shown)
        needs_value = not any(words in problem.message for words in WITHOUT_VALUE)
        if problem.path == place and is_scalar and needs_value and not is_valued:
            yield f"does not show the value: {text[:200]}"
    if not any(problem.path.startswith(place) for problem in problems):
        messages = [problem.message for problem in problems]
        if not all(any(name in message for name in JUDGED_ELSEWHERE) for message in messages):
            yield f"names another place than {place}: {messages}"


def faults_of(
    check: Callable[[str], Any], tree: dict[str, Any], place: Loc, model: type[Section]
) -> Iterator[str]:
    for field in model.model_fields:
        for value in WRONG:
            try:
                check(json.dumps(put_value(tree, (*place, field), value)))
            except ConfigInvalid as error:
                where = path_text((*place, field))
                for fault in find_faults(error.problems, where, value):
                    yield f"{where} of {value_text(value)} {fault}"


@pytest.mark.parametrize("era", Era)
def test_wrong_values_of_experiments_are_refused_with_the_path(era: Era) -> None:
    faults = [
        fault
        for its_era, place, model, given in experiment_sections()
        if its_era is era
        for fault in faults_of(
            check_config, put_value(BASES[era], place, given) if place else BASES[era], place, model
        )
    ]
    assert faults == []


def test_wrong_values_of_clusters_are_refused_with_the_path() -> None:
    base = {"resource_pools": [{"pool_name": "default"}]}
    faults = [
        fault
        for place, model, given in cluster_sections()
        for fault in faults_of(
            check_cluster,
            put_value(base, place, {"pool_name": "default"} if place == POOL else given)
            if place
            else base,
            place,
            model,
        )
    ]
    assert faults == []
