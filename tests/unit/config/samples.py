"""Small valid configurations of both eras that tests change field by field."""

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
    """Return a copy of `base` with fields at dotted paths set, or removed for ABSENT."""
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
    """Return plain values as YAML text in the given order."""
    return yaml.safe_dump(tree, sort_keys=False)


def check_changed(base: dict[str, Any], changes: dict[str, Any]) -> ExperimentConfig:
    """Check the changed configuration, which must be valid, and return the result."""
    return check_config(to_yaml(change_fields(base, changes)))


def find_problems(text: str, **layers: Any) -> tuple[Problem, ...]:
    """Return the problems of `text`; fail the test if `text` is valid."""
    with pytest.raises(ConfigInvalid) as caught:
        check_config(text, **layers)
    return caught.value.problems


def find_messages(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, str]:
    """Return the message of each problem of the changed configuration by path."""
    problems = find_problems(to_yaml(change_fields(base, changes)))
    return {problem.path: problem.message for problem in problems}
