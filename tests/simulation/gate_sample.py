"""Pairs of a scenario and a disturbance: the gate runs a sample, and `make nightly` runs all."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.simulation.scenarios import Scenario


def gate_pairs(pairs: Iterable[tuple[Scenario, Any]], values: Sequence[Any]) -> list[Any]:
    """Return the pairs as parameters, with the mark `nightly` on all but one pair per scenario.

    The values take turns, so the gate runs every scenario and every value. A scenario without the
    value whose turn it is keeps all its pairs.
    """
    scenarios: dict[str, list[tuple[Scenario, Any]]] = {}
    for scenario, value in pairs:
        scenarios.setdefault(scenario.name, []).append((scenario, value))
    parameters = []
    for turn, (name, own) in enumerate(scenarios.items()):
        chosen = values[turn % len(values)]
        has_chosen = any(value == chosen for _, value in own)
        for scenario, value in own:
            marks = pytest.mark.nightly if has_chosen and value != chosen else ()
            parameters.append(pytest.param(scenario, value, marks=marks, id=f"{name}-{value}"))
    return parameters
