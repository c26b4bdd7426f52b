"""Answers of the cluster about forks: families of experiments, and the pace of training."""

from __future__ import annotations

from typing import Any, TypedDict


class ConfigDifference(TypedDict):
    """A field in which a fork's submitted configuration differs from the original's."""

    path: str
    """The path of the field, such as `hyperparameters.lr`."""
    before: Any
    """The original's value; None if the original does not set the field."""
    after: Any
    """The fork's value; None if the fork does not set the field."""


class FamilyMember(TypedDict):
    """An experiment of a family."""

    id: int
    name: str
    user: str
    state: str
    condition: str
    """The word for the state, such as `finished`."""
    archived: bool
    metric: str
    smaller_is_better: bool
    best_metric: float | None
    created_ms: int
    """The time of the submission, in epoch milliseconds."""
    forked_from: int | None
    """The id of the original; None if the experiment is no fork."""
    differences: list[ConfigDifference] | None
    """The differences of the hyperparameters and the search from the original's; None if the
    original is no member.
    """
    differences_left_out: int
    """The number of further differences."""
    has_other_code: bool | None
    """Whether the code differs from the original's; None if the original is no member."""


class Family(TypedDict):
    """An experiment with all originals, siblings and forks.

    Siblings are forks of the same original.
    """

    experiment_id: int
    members: list[FamilyMember]
    """A tree in depth-first order: each original precedes its forks."""
    is_cut: bool
    """Whether further members exist."""


class Pace(TypedDict):
    """The measured time and cost of an experiment's training."""

    experiment_id: int
    unit: str
    """The unit of lengths, such as `batches`."""
    slots_per_trial: int
    trials: int
    """The number of trials that `units` and `cost` sum up."""
    units: float
    cost: float | None
    """The dollars for slots with a price; None if no slot has a price."""
    seconds_per_unit: float | None
    cost_per_unit: float | None
    missing: str
    """The reason why `seconds_per_unit` is None; empty otherwise."""
