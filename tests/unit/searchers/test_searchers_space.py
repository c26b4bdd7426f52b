from itertools import product

import numpy as np
import pytest
from pydantic import TypeAdapter

from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import (
    Categorical,
    Const,
    Double,
    Group,
    Int,
    Log,
    Parameter,
    draw_hparams,
    grid_point,
    grid_size,
)

MIXED = Group(
    {
        "width": Int(8, 64, 3),
        "lr": Log(10, -4, -1, 4),
        "dropout": Double(0.2, 0.8, 3),
        "batch": Const(64),
        "activation": Categorical(("relu", ["tanh", 2], None)),
    }
)


def grid_points(space: Group) -> list[dict[str, object]]:
    return [grid_point(space, i) for i in range(grid_size(space))]


def grid_values(parameter: Parameter) -> list[object]:
    return [point["x"] for point in grid_points(Group({"x": parameter}))]


@pytest.mark.parametrize("maxval_drawn", [True, False])
def test_sample_equals_numpy_draws_by_sorted_names(maxval_drawn: bool) -> None:
    state = np.random.RandomState(99)
    generator = Generator.from_seed(99)
    vals = ("relu", ["tanh", 2], None)
    for _ in range(200):
        expected = {
            "activation": vals[state.randint(3)],
            "batch": 64,
            "dropout": 0.2 + (0.8 - 0.2) * state.random_sample(),
            "lr": 10 ** (-4 + 3 * state.random_sample()),
            # 64 - 8 = 56 values without maxval, 57 with it
            "width": 8 + state.randint(57 if maxval_drawn else 56),
        }
        sample = draw_hparams(MIXED, generator, maxval_drawn=maxval_drawn)
        assert sample == expected
        assert list(sample) == sorted(MIXED.members)


@pytest.mark.parametrize(("maxval_drawn", "expected"), [(True, {3, 4, 5}), (False, {3, 4})])
def test_maxval_of_integer_is_drawn_only_in_length_era(
    maxval_drawn: bool, expected: set[int]
) -> None:
    generator = Generator.from_seed(5)
    space = Group({"n": Int(3, 5)})
    drawn = {draw_hparams(space, generator, maxval_drawn=maxval_drawn)["n"] for _ in range(100)}
    assert drawn == expected


def test_names_sort_as_strings() -> None:
    space = Group({"n2": Double(0, 1), "n10": Double(0, 1), "N3": Double(0, 1)})
    state = np.random.RandomState(1)
    sample = draw_hparams(space, Generator.from_seed(1), maxval_drawn=True)
    assert list(sample.items()) == [(name, state.random_sample()) for name in ["N3", "n10", "n2"]]


def test_nested_groups_draw_depth_first_in_sorted_order() -> None:
    inner = Group({"z": Double(0, 1), "a": Double(0, 1), "empty": Group({})})
    state = np.random.RandomState(8)
    sample = draw_hparams(
        Group({"m": inner, "b": Double(0, 1)}), Generator.from_seed(8), maxval_drawn=True
    )
    b, a, z = state.random_sample(3)
    assert sample == {"b": b, "m": {"a": a, "empty": {}, "z": z}}


def test_constants_and_single_choices_draw_no_words() -> None:
    generator = Generator.from_seed(4)
    space = Group({"c": Const({"any": [1, None]}), "only": Categorical((0,))})
    assert draw_hparams(space, generator, maxval_drawn=True) == {"c": {"any": [1, None]}, "only": 0}
    assert generator.position == 624


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (Const([1, 2]), [[1, 2]]),
        (Categorical((3, "a", None)), [3, "a", None]),
        # (2 + 3) / 2 = 2.5, away from zero: 3; and -2.5 gives -3
        (Int(2, 3, 1), [3]),
        (Int(-3, -2, 1), [-3]),
        (Int(0, 10, 3), [0, 5, 10]),
        # 0, 2.5, 5, 7.5, 10
        (Int(0, 10, 5), [0, 3, 5, 8, 10]),
        # -10, -7.5, -5, -2.5, 0
        (Int(-10, 0, 5), [-10, -8, -5, -3, 0]),
        # 0, 10/3 = 3.33, 6.67, 10
        (Int(0, 10, 4), [0, 3, 7, 10]),
        # 5 - 3 + 1 = 3 values exist
        (Int(3, 5, 100), [3, 4, 5]),
        (Int(0, 1, 2), [0, 1]),
        # beyond 2**53, where floats skip every other integer
        (Int(1 << 53, (1 << 53) + 3, 4), [(1 << 53) + i for i in range(4)]),
        (Int(-(1 << 63), (1 << 63) - 1, 2), [-(1 << 63), (1 << 63) - 1]),
        # (-(2**63) + 2**63 - 1) / 2 = -0.5
        (Int(-(1 << 63), (1 << 63) - 1, 1), [-1]),
        (Double(1, 2, 1), [1.5]),
        (Double(0, 1, 5), [0.0, 0.25, 0.5, 0.75, 1.0]),
        # 10 ** ((-4 + -2) / 2)
        (Log(10, -4, -2, 1), [0.001]),
        (Log(2, 0, 4, 3), [1.0, 4.0, 16.0]),
    ],
)
def test_grid_values(parameter: Parameter, expected: list[object]) -> None:
    assert grid_values(parameter) == expected


def test_grid_keeps_types_of_values() -> None:
    assert [type(value) for value in grid_values(Int(0, 10, 3))] == [int, int, int]
    assert [type(value) for value in grid_values(Double(0, 2, 2))] == [float, float]


def test_first_name_varies_slowest() -> None:
    space = Group({"b": Categorical((1, 2, 3)), "a": Categorical(("x", "y")), "c": Const(0)})
    assert [(p["a"], p["b"], p["c"]) for p in grid_points(space)] == list(
        product(["x", "y"], [1, 2, 3], [0])
    )
    assert list(grid_point(space, 0)) == ["a", "b", "c"]


def test_nested_axes_replace_group() -> None:
    space = Group(
        {
            "c": Categorical((5, 6)),
            "b": Group({"z": Categorical((3, 4)), "y": Group({}), "x": Int(1, 2, 2)}),
            "a": Categorical((7, 8)),
        }
    )
    expected = [
        {"a": a, "b": {"x": x, "y": {}, "z": z}, "c": c}
        for a, x, z, c in product([7, 8], [1, 2], [3, 4], [5, 6])
    ]
    assert grid_points(space) == expected


def test_empty_group_has_a_single_point_and_empty_space_has_no_points() -> None:
    assert grid_points(Group({"empty": Group({})})) == [{"empty": {}}]
    assert grid_size(Group({})) == 0


def test_point_of_huge_grid_is_computed_without_listing() -> None:
    space = Group({f"p{i}": Int(0, 9, 10) for i in range(9)})
    assert grid_size(space) == 10**9
    # the values are the digits of the index; the first name has the highest digit
    assert list(grid_point(space, 123_456_789).values()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("index", [-1, 2])
def test_rejects_point_outside_grid(index: int) -> None:
    with pytest.raises(IndexError, match="the grid has 2 points"):
        grid_point(Group({"a": Categorical((1, 2))}), index)


@pytest.mark.parametrize("parameter", [Int(0, 1), Double(0, 1), Log(10, 0, 1)])
def test_rejects_grid_parameter_without_count_by_name(parameter: Parameter) -> None:
    with pytest.raises(ValueError, match=r"hyperparameter layers\.lr has no count"):
        grid_size(Group({"layers": Group({"lr": parameter})}))


def test_space_reads_back_from_json() -> None:
    space = Group({"nested": MIXED, "whole": Double(0, 1), "n": Int(0, 1)})
    codec = TypeAdapter(Group)
    restored = codec.validate_json(codec.dump_json(space))
    assert draw_hparams(restored, Generator.from_seed(6), maxval_drawn=True) == draw_hparams(
        space, Generator.from_seed(6), maxval_drawn=True
    )
