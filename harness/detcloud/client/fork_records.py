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
    """The id of the experiment."""
    name: str
    """The name."""
    user: str
    """The user who submitted the experiment."""
    state: str
    """The stored state."""
    condition: str
    """The word for the state, such as `finished`."""
    archived: bool
    """Whether lists leave out the experiment."""
    metric: str
    """The name of the searcher's metric."""
    smaller_is_better: bool
    """Whether small values of the metric are best."""
    best_metric: float | None
    """The best validation metric; None before the first validation."""
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
    """The id of the experiment whose family this is."""
    members: list[FamilyMember]
    """A tree in depth-first order: each original precedes its forks."""
    is_cut: bool
    """Whether further members exist."""


class Pace(TypedDict):
    """The measured time and cost of an experiment's training."""

    experiment_id: int
    """The id of the experiment."""
    unit: str
    """The unit of lengths, such as `batches`."""
    slots_per_trial: int
    """The slots of each trial."""
    trials: int
    """The number of trials that `units` and `cost` sum up."""
    units: float
    """The measured training of all trials in `unit`."""
    cost: float | None
    """The dollars for slots with a price; None if no slot has a price."""
    seconds_per_unit: float | None
    """The median seconds of a unit in the three trials with the most training; None if unknown."""
    cost_per_unit: float | None
    """The dollars of a unit of training; None if unknown."""
    missing: str
    """The reason why `seconds_per_unit` is None; empty otherwise."""
