"""Types of the JSON objects about the importance of hyperparameters."""

from typing import TypedDict


class ResultLength(TypedDict):
    """A length of training at which the results of trials can be compared."""

    length: int
    """The length of training."""
    trials: int
    """The number of trials that have trained to this length."""


class HparamImportance(TypedDict):
    """The importance of a hyperparameter."""

    name: str
    """The dotted path of the hyperparameter."""
    share: float
    """The share, from 0 to 1, of the metric's variance that the hyperparameter explains alone."""
    low: float
    """The lower end of the range of 80 % of the trees."""
    high: float
    """The upper end of the range of 80 % of the trees."""


class Importance(TypedDict):
    """The importance of the hyperparameters that differ between an experiment's trials."""

    metric: str
    """The name of the metric."""
    smaller_is_better: bool | None
    """None for another metric than the searcher metric."""
    unit: str
    """The unit of lengths, such as `batches`."""
    at: int | None
    """The length at which results are compared, or None if no trial has a result."""
    lengths: list[ResultLength]
    """Lengths to choose from, by ascending length."""
    trials: int
    """The number of trials with a result at this length."""
    trials_left_out: int
    """The number of further trials whose results were not read."""
    trials_min: int
    """The least number of trials for which importance means something."""
    explained: float | None
    """The share of the metric's variance that the model predicts for unseen trials, 1 at most. With
    0 or less, the importance is that of noise. None without importance.
    """
    interactions: float | None
    """The share that only several hyperparameters together explain. None without importance."""
    note: str
    """Sentences about the limits of the result, or an empty text."""
    items: list[HparamImportance]
    """The most important first. Empty for fewer trials than `trials_min`."""
