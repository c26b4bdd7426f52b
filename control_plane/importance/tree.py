"""A regression tree, and the variances of the tree's predictions along each hyperparameter.

Sources: Breiman et al., "Classification and Regression Trees" (1984), for the splits. Hutter et
al., "An Efficient Approach for Assessing Hyperparameter Importance" (2014), for the variances.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, prod

from control_plane.importance.axes import Axis

_GAIN_MIN = 1e-9
"""The least gain of a split, and the least difference of gains. Smaller numbers are rounding
errors.
"""

Domain = range | frozenset[int]
"""The cells of an axis in a part of the space: a range of an ordered axis, otherwise any cells."""


@dataclass(frozen=True, slots=True)
class TreeVariances:
    """The variances of a tree's predictions over the space of hyperparameters."""

    total: float
    """The variance of the prediction."""
    by_axis: tuple[float, ...]
    """For each axis, the variance of the prediction that is averaged over all further axes."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of the space that the tree may split."""

    drawn: list[int]
    """The trials from which the tree learns, each once."""
    held_out: list[int]
    """The trials for which the tree predicts a metric."""
    domains: tuple[Domain, ...]
    """The cells of each axis."""
    masses: tuple[float, ...]
    """For each axis, the sum of the cells' masses."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A division of a node into two sides along an axis."""

    axis: int
    """The index of the axis."""
    left: Domain
    right: Domain


class RegressionTree:
    """A tree that predicts metrics, and sums up the predictions over the space.

    Args:
        axes: the hyperparameters.
        metrics: the metric of each trial.
        weights: how often each trial was drawn.
        predictions: a list for each trial. The tree appends a prediction to the list of each trial
            that was not drawn.
        leaf_draws_min: the least number of draws in a leaf.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        metrics: Sequence[float],
        weights: Sequence[int],
        predictions: Sequence[list[float]],
        leaf_draws_min: int = 1,
    ) -> None:
        self._axes = axes
        self._leaf_draws_min = leaf_draws_min
        self._first_axis = 0
        self._weights = weights
        self._sums = [weight * metric for weight, metric in zip(weights, metrics, strict=True)]
        self._predictions = predictions
        self._mass_sums = [list(accumulate(axis.masses, initial=0.0)) for axis in axes]
        self._mean = 0.0
        self._square = 0.0
        # The averaged prediction of a cell is a sum of three parts: for all cells of the axis, for
        # the cells from an index on, and for single cells.
        self._everywhere = [0.0] * len(axes)
        self._onward = [[0.0] * (len(axis.masses) + 1) for axis in axes]
        self._single = [[0.0] * len(axis.masses) for axis in axes]

    def grow(self) -> TreeVariances:
        """Split the space until no split has a gain, and return the variances.

        Must be called only once.
        """
        pending = [self._root()]
        while pending:
            node = pending.pop()
            split = self._find_split(node)
            if split is None:
                self._add_leaf(node)
            else:
                pending += self._divide(node, split)
        total = max(0.0, self._square - self._mean**2)
        return TreeVariances(total, tuple(map(self._axis_variance, range(len(self._axes)))))

    def _root(self) -> _Node:
        """Return the whole space, with all trials."""
        drawn: list[int] = []
        held_out: list[int] = []
        for trial, weight in enumerate(self._weights):
            (drawn if weight else held_out).append(trial)
        cells = [range(len(axis.masses)) for axis in self._axes]
        domains = (
            of_axis if axis.is_ordered else frozenset(of_axis)
            for axis, of_axis in zip(self._axes, cells, strict=True)
        )
        return _Node(drawn, held_out, tuple(domains), (1.0,) * len(self._axes))

    def _find_split(self, node: _Node) -> _Split | None:
        """Return the split with the largest gain. Return None if no split has a gain."""
        drawn = node.drawn
        if len(drawn) < 2:
            return None
        total = fsum([self._sums[trial] for trial in drawn])
        count = sum([self._weights[trial] for trial in drawn])
        if count < 2 * self._leaf_draws_min:
            return None
        best_score = total * total / count
        best: _Split | None = None
        # Two trials are separated equally well along every axis: the axes take turns to be first.
        axis_count = len(self._axes)
        self._first_axis = (self._first_axis + 1) % axis_count
        for turn in range(axis_count):
            index = (self._first_axis + turn) % axis_count
            axis = self._axes[index]
            sums, counts = self._cell_sums(axis.cells, drawn)
            if len(sums) < 2:
                continue
            order = sorted(sums)
            if not axis.is_ordered:
                # The best division of categories separates low from high means (Breiman et al.).
                means = {cell: sums[cell] / counts[cell] for cell in order}
                order.sort(key=means.__getitem__)
            score, place = _best_place(order, sums, counts, total, self._leaf_draws_min)
            if score > best_score + _GAIN_MIN:
                best_score = score
                best = _make_split(index, node.domains[index], order, place)
        return best

    def _cell_sums(
        self, cells: Sequence[int], drawn: Sequence[int]
    ) -> tuple[dict[int, float], dict[int, int]]:
        """Return the sum of the metrics and the number of draws, for each cell with a draw."""
        sums: dict[int, float] = {}
        counts: dict[int, int] = {}
        trial_sums, weights = self._sums, self._weights
        for trial in drawn:
            cell = cells[trial]
            if cell in sums:
                sums[cell] += trial_sums[trial]
                counts[cell] += weights[trial]
            else:
                sums[cell] = trial_sums[trial]
                counts[cell] = weights[trial]
        return sums, counts

    def _divide(self, node: _Node, split: _Split) -> tuple[_Node, _Node]:
        """Return the two sides of a split with the trials of each side."""
        index = split.axis
        cells, left = self._axes[index].cells, split.left
        sides = []
        for domain in (left, split.right):
            is_left = domain is left
            drawn = [trial for trial in node.drawn if (cells[trial] in left) is is_left]
            held_out = [trial for trial in node.held_out if (cells[trial] in left) is is_left]
            domains = (*node.domains[:index], domain, *node.domains[index + 1 :])
            mass = self._mass_of(index, domain)
            masses = (*node.masses[:index], mass, *node.masses[index + 1 :])
            sides.append(_Node(drawn, held_out, domains, masses))
        return sides[0], sides[1]

    def _mass_of(self, index: int, domain: Domain) -> float:
        """Return the sum of the masses of an axis's cells."""
        if isinstance(domain, range):
            sums = self._mass_sums[index]
            return sums[domain.stop] - sums[domain.start]
        return fsum(self._axes[index].masses[cell] for cell in domain)

    def _add_leaf(self, node: _Node) -> None:
        """Predict the mean of the drawn trials for the held-out trials, and add the prediction to
        the sums over the space.
        """
        count = sum([self._weights[trial] for trial in node.drawn])
        value = fsum([self._sums[trial] for trial in node.drawn]) / count
        for trial in node.held_out:
            self._predictions[trial].append(value)
        part = value * prod(node.masses)
        self._mean += part
        self._square += value * part
        for index, (domain, mass) in enumerate(zip(node.domains, node.masses, strict=True)):
            averaged = part / mass
            if len(domain) == len(self._single[index]):
                self._everywhere[index] += averaged
            elif isinstance(domain, range):
                self._onward[index][domain.start] += averaged
                self._onward[index][domain.stop] -= averaged
            else:
                for cell in domain:
                    self._single[index][cell] += averaged

    def _axis_variance(self, index: int) -> float:
        """Return the variance of the prediction that is averaged over all further axes."""
        everywhere = self._everywhere[index] - self._mean
        parts = zip(
            self._axes[index].masses,
            accumulate(self._onward[index]),
            self._single[index],
            strict=False,
        )
        return fsum(mass * (everywhere + onward + single) ** 2 for mass, onward, single in parts)


def _best_place(
    order: Sequence[int],
    sums: dict[int, float],
    counts: dict[int, int],
    total: float,
    leaf_draws_min: int,
) -> tuple[float, int]:
    """Return the best place for a split in a sequence of cells, and the score of the split.

    If every split leaves a side with too few draws, the score is negative.

    The score is the sum of S^2 / n over both sides, for a side's sum S of n metrics. A higher score
    means smaller squared errors. The split is before the cell with the returned index.

    Args:
        order: the cells with drawn trials. At least two.
        sums: the sum of the metrics in each cell.
        counts: the number of draws in each cell.
        total: the sum of all metrics.
        leaf_draws_min: the least number of draws on a side.
    """
    best_score, best_place = -1.0, 0
    left_sum, left_count = 0.0, 0
    right_count = sum(counts.values())
    for place, cell in enumerate(order, 1):
        left_sum += sums[cell]
        left_count += counts[cell]
        right_count -= counts[cell]
        if right_count < leaf_draws_min:
            break
        if left_count < leaf_draws_min:
            continue
        right_sum = total - left_sum
        score = left_sum * left_sum / left_count + right_sum * right_sum / right_count
        if score > best_score:
            best_score, best_place = score, place
    return best_score, best_place


def _make_split(index: int, domain: Domain, order: Sequence[int], place: int) -> _Split:
    """Return the split before `order[place]`.

    An ordered axis is divided in the middle between the two neighboring cells. Categories without
    drawn trials join the side with more categories.
    """
    if isinstance(domain, range):
        middle = (order[place - 1] + order[place] + 1) // 2
        return _Split(index, range(domain.start, middle), range(middle, domain.stop))
    left = frozenset(order[:place])
    if 2 * place > len(order):
        left = domain.difference(order[place:])
    return _Split(index, left, domain - left)
