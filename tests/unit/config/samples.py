"""Small configurations of both eras, to be changed field by field."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid, Problem

STEP: dict[str, Any] = {
    "entrypoint": "model_def:MyTrial",
    "hyperparameters": {"global_batch_size": 64},
    "searcher": {"name": "single", "metric": "loss", "max_steps": 10},
}
LENGTH: dict[str, Any] = {
    "entrypoint": "model_def:MyTrial",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1000}},
}
ABSENT = object()


def change_fields(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the fields at dotted paths set, or taken out where the value is ABSENT."""
    tree = copy.deepcopy(base)
    for path, value in changes.items():
        *parents, last = path.split(".")
        section = tree
        for key in parents:
            section = section.setdefault(key, {})
        if value is ABSENT:
            del section[last]
        else:
            section[last] = value
    return tree


def to_yaml(tree: object) -> str:
    """YAML text of plain values."""
    return yaml.safe_dump(tree, sort_keys=False)


def check_changed(base: dict[str, Any], changes: dict[str, Any]) -> ExperimentConfig:
    """The changed configuration, which must be valid."""
    return check_config(to_yaml(change_fields(base, changes)))


def find_problems(text: str, **layers: Any) -> tuple[Problem, ...]:
    """Why `text` is refused."""
    with pytest.raises(ConfigInvalid) as caught:
        check_config(text, **layers)
    return caught.value.problems


def find_messages(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, str]:
    """Path to message for each problem of the changed configuration."""
    problems = find_problems(to_yaml(change_fields(base, changes)))
    return {problem.path: problem.message for problem in problems}
