"""A single trial: a random search of one that is not replaced."""

from dataclasses import dataclass, replace
from typing import Literal

from control_plane.searchers.random import RandomPlan, RandomSearch
from control_plane.searchers.rules import Rules


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """Train one trial to `max_length`."""

    max_length: int
    rules: Rules
    kind: Literal["single"] = "single"


def single_search(plan: SinglePlan) -> RandomSearch:
    """Make the method; invalid hyperparameters end the search instead of drawing new ones."""
    rules = replace(plan.rules, replaces_invalid_hparams=False)
    return RandomSearch(
        RandomPlan(plan.max_length, max_trials=1, max_concurrent_trials=0, rules=rules)
    )
