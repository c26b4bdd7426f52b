"""A single trial: a random search of one that is not replaced."""

from dataclasses import dataclass, replace
from typing import Literal

from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.full_trainings import (
    StepTrainingOptions,
    TrainingOptions,
    length_count,
)
from control_plane.searchers.methods.random import RandomPlan, RandomSearch, RandomState
from control_plane.searchers.spec import PreviewPart, SearcherSpec


class StepSingle(StepTrainingOptions):
    """One trial."""


class LengthSingle(TrainingOptions):
    """One trial."""


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """Train one trial to `max_length`, which may be ENDLESS."""

    max_length: int
    rules: SearchRules
    kind: Literal["single"] = "single"


def single_search(plan: SinglePlan) -> RandomSearch:
    """Make the method, in which invalid hyperparameters are not replaced but end the search."""
    rules = replace(plan.rules, replaces_invalid_hparams=False)
    return RandomSearch(
        RandomPlan(plan.max_length, max_trials=1, max_concurrent_trials=0, rules=rules)
    )


def _make_plan(options: StepSingle | LengthSingle, rules: SearchRules) -> SinglePlan:
    match options:
        case StepSingle(max_steps=length) | LengthSingle(max_length=length):
            return SinglePlan(length_count(length), rules)


SPEC = SearcherSpec[StepSingle | LengthSingle, SinglePlan](
    name="single",
    listing_order=0,
    step_options=StepSingle,
    length_options=LengthSingle,
    plan_type=SinglePlan,
    state_type=RandomState,
    make_plan=_make_plan,
    make_method=lambda plan, space, blobs: single_search(plan),
    trial_count=lambda options, plan, space: 1,
    preview=lambda plan: [PreviewPart(plan)],
    space_use="constant",
    trains_to_end=True,
)
