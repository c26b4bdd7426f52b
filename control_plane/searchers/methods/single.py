"""The searcher `single`: a random search with one trial."""

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
    """A single trial."""


class LengthSingle(TrainingOptions):
    """A single trial."""


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """The plan of a search with one trial."""

    max_length: int
    """The length of the trial, or ENDLESS."""
    rules: SearchRules
    kind: Literal["single"] = "single"


def single_search(plan: SinglePlan) -> RandomSearch:
    """Return a random search with one trial.

    If the trial refuses the hyperparameters, the trial is not replaced and the search ends.
    """
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
    can_continue=True,
)
