"""Cells and masses of hyperparameters."""

import math

import pytest

from control_plane.importance.axes import (
    CATEGORIES_MAX,
    CELLS_MAX,
    Axis,
    build_axes,
    flatten_hparams,
    flatten_space,
)
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Leaf, Log


def only_axis(values: list[object], parameter: Leaf | None = None) -> Axis:
    [axis] = build_axes([{"x": value} for value in values], {"x": parameter} if parameter else {})
    return axis


def test_cells_are_separated_halfway_between_values() -> None:
    axis = only_axis([1.0, 4.0, 2.0, 4.0], Double(0, 5))
    # Boundaries at 1.5 and 3 in [0, 5]: widths 1.5, 1.5 and 2.
    assert axis.cells == (0, 2, 1, 2)
    assert axis.masses == pytest.approx((0.3, 0.3, 0.4))
    assert axis.is_ordered


def test_log_hyperparameter_has_the_scale_of_its_exponent() -> None:
    axis = only_axis([1e-4, 1e-2, 1e-1], Log(10, -5, -1))
    # Exponents -4, -2 and -1 in [-5, -1]: boundaries at -3 and -1.5, widths 2, 1.5 and 0.5.
    assert axis.masses == pytest.approx((0.5, 0.375, 0.125))


def test_values_outside_the_space_extend_the_bounds() -> None:
    axis = only_axis([-10, 10], Int(0, 2))
    assert axis.masses == pytest.approx((0.5, 0.5))


def test_unknown_numbers_over_two_decades_have_a_logarithmic_scale() -> None:
    # Exponents 0, 1 and 3: boundaries at 0.5 and 2 in [0, 3].
    assert only_axis([1, 10, 1000]).masses == pytest.approx((1 / 6, 1 / 2, 1 / 3))
    # Boundaries at 5.5 and 35 in [1, 60].
    assert only_axis([1, 10, 60]).masses == pytest.approx((4.5 / 59, 29.5 / 59, 25 / 59))


def test_many_values_share_cells_with_about_as_many_trials() -> None:
    axis = only_axis([math.sqrt(n) for n in range(10 * CELLS_MAX)])
    assert len(axis.masses) == CELLS_MAX
    counts = [axis.cells.count(cell) for cell in range(CELLS_MAX)]
    assert set(counts) == {10}
    assert sum(axis.masses) == pytest.approx(1)


def test_categories_are_compared_as_json() -> None:
    axis = only_axis([1, True, "1", 1, [1]], Categorical((1, True, "1", [1])))
    assert not axis.is_ordered
    # The most frequent category has the first cell, and four categories have equal masses.
    assert axis.cells[0] == axis.cells[3] == 0
    assert len(set(axis.cells)) == 4
    assert axis.masses == pytest.approx((0.25,) * 4)


def test_numbers_beside_texts_are_categories() -> None:
    assert not only_axis([1, "auto"]).is_ordered
    # Neither a boolean nor an integer beyond the range of floats is a number on a scale.
    assert not only_axis([False, True]).is_ordered
    assert not only_axis([1, 10**400]).is_ordered


def test_rare_categories_share_a_cell() -> None:
    axis = only_axis([f"name {n}" for n in range(3 * CATEGORIES_MAX)])
    assert len(axis.masses) == CATEGORIES_MAX + 1
    # The last cell has two thirds of the categories.
    assert axis.masses[-1] == pytest.approx(2 / 3)


def test_missing_hyperparameter_has_a_cell_with_the_share_of_trials() -> None:
    trials: list[dict[str, object]] = [{"x": 1.0}, {}, {"x": 3.0}, {}]
    [axis] = build_axes(trials, {"x": Double(0, 4)})
    assert axis.cells == (1, 0, 2, 0)
    assert axis.masses == pytest.approx((0.5, 0.25, 0.25))
    # A constant that only some trials have differs between trials, too.
    [axis] = build_axes([{"x": "adam"}, {}, {}, {}], {})
    assert axis.masses == pytest.approx((0.75, 0.25))


def test_constants_have_no_axis() -> None:
    assert build_axes([{"x": 1, "y": "a"}, {"x": 1, "y": "a"}], {"x": Const(1)}) == []


@pytest.mark.parametrize("values", [[-1e308, 1e308, 0.0], [5e-324, 0.0], [0.1, 0.1 + 2**-56]])
def test_extreme_numbers_have_positive_masses(values: list[object]) -> None:
    axis = only_axis(values)
    assert all(mass > 0 for mass in axis.masses)
    assert sum(axis.masses) == pytest.approx(1)


def test_nested_hyperparameters_have_dotted_paths() -> None:
    assert flatten_hparams({"a": {"b.c": 1, "d": [2]}}) == {'a."b.c"': 1, "a.d": [2]}
    space = Group({"a": Group({"b.c": Double(0, 1)}), "e": Const(3)})
    assert flatten_space(space) == {'a."b.c"': Double(0, 1), "e": Const(3)}
