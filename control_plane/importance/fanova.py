"""Functional analysis of variance: the share of a metric's variance that each hyperparameter
explains.

Source: Hutter, Hoos and Leyton-Brown, "An Efficient Approach for Assessing Hyperparameter
Importance" (2014). A forest of regression trees predicts the metric. For each tree, the variance of
the prediction over the whole space is divided into the parts of single hyperparameters and a rest,
the interactions. The parts are computed exactly from the leaves of the trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from control_plane.importance.axes import Axis, Hparams, build_axes
from control_plane.importance.tree import RegressionTree, TreeVariances
from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import Leaf

TRIALS_MIN = 20
"""The least number of trials for which importance means something (decision 124)."""
TRIALS_SURE = 40
"""The number of trials from which also effects that rise and fall are found (decision 124)."""
TREES_MAX = 64
"""The number of trees for few trials. Optuna has as many."""
TREES_MIN = 16
"""The number of trees for many trials. The package `fanova` of the method's authors has as many."""
WORK_MAX = 100_000
"""The most draws of trials, over all trees and hyperparameters: less than half a second."""
DRAWS_MIN = 100
"""The least number of draws for a tree if there are as many trials."""
LEAVES_MAX = 100
"""The most leaves of a tree with many draws. Smaller leaves follow the noise of the metric."""
RANGE_SHARE = 0.8
"""The share of the trees whose results lie between `low` and `high`."""
_SEED = 0
_VARIANCE_MIN = 1e-12
"""The least variance of a prediction that is not constant; the variance of the metrics is 1."""


@dataclass(frozen=True, slots=True)
class HparamImportance:
    """The importance of a hyperparameter."""

    name: str
    """The dotted path."""
    share: float
    """The share, from 0 to 1, of the metric's variance that the hyperparameter explains alone."""
    low: float
    """The lower end of the middle 80 % of the trees."""
    high: float
    """The upper end of the middle 80 % of the trees."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The importance of all hyperparameters that differ between trials."""

    hparams: tuple[HparamImportance, ...]
    """The most important first."""
    interactions: float
    """The share of the variance that only several hyperparameters together explain."""
    explained: float
    """The share of the metric's variance that the forest predicts for held-out trials. Zero or
    negative: the forest predicts no better than the mean, and the importance is that of noise.
    """


def assess_importance(
    trials: Sequence[Hparams], metrics: Sequence[float], space: Mapping[str, Leaf]
) -> Assessment | None:
    """Return the importance of the hyperparameters. Equal arguments give an equal result.

    Return None if fewer than two trials exist, all metrics are equal, or no hyperparameter differs.

    Args:
        trials: the hyperparameters of each trial by dotted path.
        metrics: the finite metric of each trial.
        space: the search space by dotted path, for scales and bounds.
    """
    axes = build_axes(trials, space) if len(trials) > 1 else []
    scores = _standardize(metrics)
    if not axes or scores is None:
        return None
    predictions: list[list[float]] = [[] for _ in trials]
    trees = _grow_forest(axes, scores, predictions)
    shares = [
        [min(1.0, variance / tree.total) for variance in tree.by_axis]
        for tree in trees
        if tree.total > _VARIANCE_MIN
    ]
    if not shares:
        return None
    found = (
        _summarize(axis, sorted(of_tree[index] for of_tree in shares))
        for index, axis in enumerate(axes)
    )
    interactions = fsum(max(0.0, 1 - fsum(of_tree)) for of_tree in shares) / len(shares)
    return Assessment(
        hparams=tuple(sorted(found, key=lambda hparam: (-hparam.share, hparam.name))),
        interactions=interactions,
        explained=_explained_share(scores, predictions),
    )


def _standardize(metrics: Sequence[float]) -> list[float] | None:
    """Return the metrics shifted and scaled to mean 0 and variance 1. None if all are equal."""
    # Divided first, because the squares of large metrics exceed the range of floats.
    size = max(map(abs, metrics), default=0.0)
    if size == 0:
        return None
    scaled = [metric / size for metric in metrics]
    mean = fsum(scaled) / len(scaled)
    variance = fsum((metric - mean) ** 2 for metric in scaled) / len(scaled)
    if variance <= 0:
        return None
    deviation = variance**0.5
    return [(metric - mean) / deviation for metric in scaled]


def _grow_forest(
    axes: Sequence[Axis], scores: Sequence[float], predictions: Sequence[list[float]]
) -> list[TreeVariances]:
    """Grow trees of random draws with replacement, and return the variances of each tree.

    The number of trees and draws is limited by WORK_MAX. Each tree appends its predictions to the
    lists of the trials that were not drawn.
    """
    count = len(scores)
    trees = min(TREES_MAX, max(TREES_MIN, WORK_MAX // (count * len(axes))))
    draws = min(count, max(DRAWS_MIN, WORK_MAX // (trees * len(axes))))
    generator = Generator.from_seed(_SEED)
    variances: list[TreeVariances] = []
    for _ in range(trees):
        weights = [0] * count
        for _ in range(draws):
            weights[int(generator.draw_uniform() * count)] += 1
        tree = RegressionTree(axes, scores, weights, predictions, max(1, draws // LEAVES_MAX))
        variances.append(tree.grow())
    return variances


def _summarize(axis: Axis, shares: Sequence[float]) -> HparamImportance:
    """Return the mean and the range of a hyperparameter's shares, which must be sorted."""
    tail = (1 - RANGE_SHARE) / 2
    mean = fsum(shares) / len(shares)
    return HparamImportance(
        axis.name,
        share=mean,
        low=min(mean, _quantile(shares, tail)),
        high=max(mean, _quantile(shares, 1 - tail)),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated linearly between two values."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _explained_share(scores: Sequence[float], predictions: Sequence[Sequence[float]]) -> float:
    """Return the share of the variance that the predictions for held-out trials explain.

    Trials without a prediction, which every tree has drawn, do not count. Return 0 without a
    prediction.
    """
    pairs = [
        (score, fsum(of_trial) / len(of_trial))
        for score, of_trial in zip(scores, predictions, strict=True)
        if of_trial
    ]
    mean = fsum(score for score, _ in pairs) / max(1, len(pairs))
    variance = fsum((score - mean) ** 2 for score, _ in pairs)
    errors = fsum((score - predicted) ** 2 for score, predicted in pairs)
    return 1 - errors / variance if variance > 0 else 0.0
