"""Checks and previews of forks of a fake cluster."""

from copy import deepcopy
from typing import Any

import yaml

from tests.unit.client.fake_refusal import Item


def override(tree: Item, overrides: list[str]) -> Item:
    """Return a configuration with assignments `a.b=value`."""
    changed = deepcopy(tree)
    for text in overrides:
        path, _, value = text.partition("=")
        *sections, name = path.split(".")
        section: dict[str, Any] = changed
        for one in sections:
            section = section.setdefault(one, {})
        section[name] = yaml.safe_load(value)
    return changed


def preview(tree: Item, warnings: list[str]) -> Item:
    """Return the answer to a checked fork, in the pool `default`."""
    return {
        "id": None,
        "config": {**tree, "resources": {"slots_per_trial": 1}},
        "submitted_config": tree,
        "resource_pool": "default",
        "warnings": warnings,
    }


def search_preview(body: Item) -> Item:
    """Return a search of 2 trials of 200 batches each, whose simulated trials are 20 % slower."""
    slot_seconds = 400 * body.get("seconds_per_unit", 1.0) * 1.2
    estimate = {
        "units": 400.0,
        "slots": body["slots"],
        "slots_per_trial": 1,
        "slot_seconds": slot_seconds,
        "makespan_seconds": slot_seconds / body["slots"],
    }
    return {
        "searcher": "random",
        "unit": "batches",
        "trials": 2,
        "units": 400,
        "estimate": estimate,
        "estimate_missing": "",
    }
