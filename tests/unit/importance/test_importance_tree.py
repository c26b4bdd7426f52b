"""Variances of a tree, compared with sums over all cells of the space."""

from itertools import product
from math import fsum, prod
from random import Random

import pytest

from control_plane.importance.axes import Axis
from control_plane.importance.tree import RegressionTree

MASSES = ((0.1, 0.4, 0.2, 0.3), (0.5, 0.25, 0.25), (0.2, 0.2, 0.6))
ORDERED = (True, True, False)


def grid_with_trials(seed: int, drawn: int) -> tuple[list[Axis], list[float], list[int]]:
    """Return axes, metrics and weights: a held-out trial in each cell, then drawn trials."""
    chance = Random(seed)
    points = list(product(*(range(len(masses)) for masses in MASSES)))
    points += [tuple(chance.randrange(len(masses)) for masses in MASSES) for _ in range(drawn)]
    held_out = len(points) - drawn
    axes = [
        Axis(f"x{n}", tuple(point[n] for point in points), masses, is_ordered)
        for n, (masses, is_ordered) in enumerate(zip(MASSES, ORDERED, strict=True))
    ]
    metrics = [chance.gauss(point[0] * point[1] + (point[2] == 1), 0.3) for point in points]
    weights = [0] * held_out + [chance.randrange(1, 4) for _ in range(drawn)]
    return axes, metrics, weights


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drawn", [2, 5, 40])
def test_variances_are_those_of_the_predictions_over_the_space(seed: int, drawn: int) -> None:
    axes, metrics, weights = grid_with_trials(seed, drawn)
    predictions: list[list[float]] = [[] for _ in weights]
    variances = RegressionTree(axes, metrics, weights, predictions).grow()
    cells = list(product(*(range(len(masses)) for masses in MASSES)))
    predicted = {cell: predictions[n][0] for n, cell in enumerate(cells)}
    mass = {cell: prod(masses[n] for masses, n in zip(MASSES, cell, strict=True)) for cell in cells}
    mean = fsum(mass[cell] * predicted[cell] for cell in cells)
    total = fsum(mass[cell] * (predicted[cell] - mean) ** 2 for cell in cells)
    assert variances.total == pytest.approx(total, abs=1e-12)
    for axis, masses in enumerate(MASSES):
        averaged = [
            fsum(mass[cell] * predicted[cell] for cell in cells if cell[axis] == n) / of_cell
            for n, of_cell in enumerate(masses)
        ]
        variance = fsum(
            of_cell * (value - mean) ** 2 for of_cell, value in zip(masses, averaged, strict=True)
        )
        assert variances.by_axis[axis] == pytest.approx(variance, abs=1e-12)


def test_leaves_predict_the_mean_of_equal_points() -> None:
    axis = Axis("x", (0, 0, 1, 0, 1), (0.5, 0.5), is_ordered=True)
    predictions: list[list[float]] = [[] for _ in range(5)]
    # Of cell 0, one draw of 1 and three of 5: mean 4. Of cell 1, one draw of 2.
    variances = RegressionTree([axis], [1, 5, 2, 0, 0], [1, 3, 1, 0, 0], predictions).grow()
    assert predictions == [[], [], [], [4], [2]]
    # The mean over the space is 3, and both cells differ by 1.
    assert (variances.total, *variances.by_axis) == pytest.approx((1, 1))


def test_ordered_axis_is_divided_halfway_between_drawn_cells() -> None:
    cells = (0, 4, 1, 2, 3)
    axis = Axis("x", cells, (0.2,) * 5, is_ordered=True)
    predictions: list[list[float]] = [[] for _ in cells]
    RegressionTree([axis], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], predictions).grow()
    # Cells 0 and 4 are drawn: cells below 2 belong to the left side.
    assert predictions[2:] == [[0], [1], [1]]


def test_best_division_of_categories_ignores_their_order() -> None:
    # Categories 0 and 2 have metric 1, and category 1 has metric 0: a single split is enough.
    axis = Axis("x", (0, 1, 2), (1 / 3,) * 3, is_ordered=False)
    variances = RegressionTree([axis], [1, 0, 1], [1, 1, 1], [[], [], []]).grow()
    assert variances.total == pytest.approx(2 / 9)


def test_unseen_category_joins_the_side_with_more_categories() -> None:
    axis = Axis("x", (0, 1, 2, 3), (0.25,) * 4, is_ordered=False)
    predictions: list[list[float]] = [[] for _ in range(4)]
    RegressionTree([axis], [1, 1, 5, 0], [1, 1, 1, 0], predictions).grow()
    assert predictions[3] == [1]
