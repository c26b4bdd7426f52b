"""Configurations of commands, which have some of the sections of an experiment.

A command is a program that runs once on one machine. Its configuration becomes an experiment's
whose search has a single trial (COMMAND_SETTINGS); the program decides when the trial ends. Users
cannot change these settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from control_plane.config.eras import Tree
from control_plane.config.experiment import ExperimentConfig, LengthConfig, StepConfig
from control_plane.field_types import is_count
from control_plane.findings import Finding
from detcloud.shared.launcher_names import trial_class_of

COMMAND_SETTINGS: Final = MappingProxyType(
    {
        "searcher": {"name": "single", "metric": "none"},
        "max_restarts": 0,
        "checkpoint_policy": "none",
        "resources": {"is_single_node": True},
    }
)
COMMAND_SECTIONS: Final = frozenset(
    {
        "name",
        "description",
        "labels",
        "workspace",
        "project",
        "entrypoint",
        "resources",
        "environment",
        "bind_mounts",
        "data",
        "debug",
        "slurm",
        "pbs",
        "security",
        "internal",
        "integrations",
        "retention_policy",
        "log_policies",
    }
)
"""The sections of an experiment's configuration that a command may have, too."""

_ALL_SECTIONS: Final = StepConfig.model_fields.keys() | LengthConfig.model_fields.keys()
_REFUSED_RESOURCES: Final = MappingProxyType(
    {
        "slots_per_trial": "use resources.slots",
        "is_single_node": "remove it: a command runs on one machine",
        "max_slots": "remove it: resources.slots says how many slots it has",
        "native_parallel": "remove it: a command runs on one machine",
        "deadline": "remove it: nobody knows how long a program takes",
    }
)


def command_layer(tree: Tree) -> tuple[Tree, list[Finding]]:
    """Convert a layer of a command's configuration to a layer of an experiment's.

    Return the converted layer, and a finding for each field that commands cannot have and for an
    entrypoint that trains a trial class. Fields with findings stay in the layer. `resources.slots`
    becomes `slots_per_trial` if it is a valid count. An entrypoint that is a list of one word
    becomes a text for the shell. `tree` is not changed.
    """
    resources = tree.get("resources")
    if isinstance(resources, Mapping) and _is_slot_count(resources.get("slots")):
        rest = {name: value for name, value in resources.items() if name != "slots"}
        tree_for_trial = {**tree, "resources": {**rest, "slots_per_trial": resources["slots"]}}
    else:
        tree_for_trial = dict(tree)
    match tree_for_trial.get("entrypoint"):
        case [str(line)]:
            # Determined and Dockerfiles run a single word with the shell, too.
            tree_for_trial["entrypoint"] = line
    return tree_for_trial, list(_find_foreign_fields(tree))


def command_values(config: ExperimentConfig) -> dict[str, Any]:
    """Return a command's configuration as JSON values in the form that users write.

    Secrets are masked. Sections and resources that commands cannot have are left out, and
    `slots_per_trial` is named `slots`.
    """
    values = {
        name: value for name, value in config.masked_values().items() if name in COMMAND_SECTIONS
    }
    resources = values["resources"]
    slots = resources["slots_per_trial"]
    kept = {
        name: resource for name, resource in resources.items() if name not in _REFUSED_RESOURCES
    }
    return {**values, "resources": {**kept, "slots": slots}}


def _find_foreign_fields(tree: Tree) -> Iterator[Finding]:
    for name in tree:
        if name in _ALL_SECTIONS - COMMAND_SECTIONS:
            yield Finding((name,), "is for experiments", "remove it: a command has none")
    resources = tree.get("resources")
    for name, value in resources.items() if isinstance(resources, Mapping) else ():
        if name in _REFUSED_RESOURCES and value is not None:
            yield Finding(("resources", name), "is for experiments", _REFUSED_RESOURCES[name])
    entrypoint = tree.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else [entrypoint]
    if all(isinstance(word, str) for word in words) and (named := trial_class_of(entrypoint or "")):
        hint = "use the name of a program and its arguments, or create an experiment"
        yield Finding(("entrypoint",), f"trains the trial class {named}", hint)


def _is_slot_count(value: object) -> bool:
    return isinstance(value, int) and is_count(value, 0)
