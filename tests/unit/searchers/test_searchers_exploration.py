"""Copies' hyperparameters, by the rules and by numpy's own draws."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from control_plane.searchers.exploration import Exploration, explore_hparams
from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Log, Parameter

SEED = 11


def perturb(parameter: Parameter, value: object, *, up: bool, factor: float = 0.2) -> object:
    """The value, moved in a direction that a seed was found for."""
    exploration = Exploration(0.0, factor)
    for seed in range(100):
        first, second = np.random.RandomState(seed).random_sample(2)
        if first >= 0 and bool(second >= 0.5) is up:
            generator = Generator.from_seed(seed)
            found = explore_hparams(
                Group({"x": parameter}), {"x": value}, generator, exploration, maxval_drawn=False
            )
            return found["x"]
    raise AssertionError


@pytest.mark.parametrize(
    ("parameter", "value", "less", "more"),
    [
        # 0.8 * 9 = 7.2 down to 7; 1.2 * 9 = 10.8 up to 11.
        (Int(0, 100), 9, 7, 11),
        # 0.8 * 10 = 8 but at least 9; 1.2 * 10 = 12 but at most 11, which no draw would give.
        (Int(9, 11), 10, 9, 11),
        # 0.8 * -9 = -7.2 down to -8; 1.2 * -9 = -10.8 up to -10.
        (Int(-100, 0), -9, -8, -10),
        (Double(0.0, 1.0), 0.5, 0.4, 0.6),
        (Double(0.45, 0.55), 0.5, 0.45, 0.55),
        # 0.8 * 0.1 and 1.2 * 0.1, within 10^-2 and 10^-1.
        (Log(10, -2, -1), 0.05, 0.04, 0.06),
        (Log(10, -2, -1), 0.1, 0.08, 0.1),
        (Log(10, -2, -1), 0.01, 0.01, 0.012),
        (Const(7), 7, 7, 7),
        (Categorical((1, 2, 3)), 2, 2, 2),
    ],
)
def test_a_value_moves_by_the_factor_within_its_bounds(
    parameter: Parameter, value: object, less: object, more: object
) -> None:
    down, up = perturb(parameter, value, up=False), perturb(parameter, value, up=True)
    assert (down, up) == (pytest.approx(less), pytest.approx(more))
    assert type(down) is type(value)


@pytest.mark.parametrize("seed", range(5))
def test_each_name_draws_twice_in_sorted_order_whatever_its_kind(seed: int) -> None:
    space = Group(
        {
            "d": Double(0.0, 1.0),
            "a": Const("same"),
            "c": Categorical(("x", "y")),
            "b": Int(0, 1000),
            "e": Log(10, -4, -1),
        }
    )
    before: dict[str, Any] = {"a": "same", "b": 500, "c": "x", "d": 0.5, "e": 0.001}
    generator = Generator.from_seed(seed)
    found = explore_hparams(space, before, generator, Exploration(0.5, 0.25), maxval_drawn=False)
    numpy = np.random.RandomState(seed)
    expected: dict[str, Any] = {}
    draws: dict[str, Callable[[], Any]] = {
        "a": lambda: "same",
        "b": lambda: int(numpy.randint(1000)),
        "c": lambda: "xy"[numpy.randint(2)],
        "d": numpy.random_sample,
        "e": lambda: 10 ** (-4 + 3 * numpy.random_sample()),
    }
    for name in "abcde":
        if numpy.random_sample() < 0.5:
            expected[name] = draws[name]()
            continue
        down = numpy.random_sample() < 0.5
        factor = 0.75 if down else 1.25
        match name:
            case "b":
                expected[name] = math.floor(500 * factor) if down else math.ceil(500 * factor)
            case "d":
                expected[name] = 0.5 * factor
            case "e":
                expected[name] = 0.001 * factor
            case _:
                expected[name] = before[name]
    assert found == pytest.approx(expected)
    assert generator.draw_uniform() == numpy.random_sample()


def test_a_group_is_explored_member_by_member() -> None:
    flat = Group({"a": Double(0.0, 1.0), "b": Double(0.0, 1.0)})
    nested = Group({"a": Double(0.0, 1.0), "g": Group({"b": Double(0.0, 1.0)})})
    exploration = Exploration(0.3, 0.2)
    one = explore_hparams(
        flat, {"a": 0.5, "b": 0.5}, Generator.from_seed(SEED), exploration, maxval_drawn=True
    )
    other = explore_hparams(
        nested,
        {"a": 0.5, "g": {"b": 0.5}},
        Generator.from_seed(SEED),
        exploration,
        maxval_drawn=True,
    )
    assert other == {"a": one["a"], "g": {"b": one["b"]}}


@pytest.mark.parametrize("maxval_drawn", [False, True])
def test_what_is_resampled_is_drawn_as_at_the_start(maxval_drawn: bool) -> None:
    found = {
        explore_hparams(
            Group({"n": Int(0, 2)}),
            {"n": 0},
            Generator.from_seed(seed),
            Exploration(1.0, 0.2),
            maxval_drawn=maxval_drawn,
        )["n"]
        for seed in range(50)
    }
    assert found == ({0, 1, 2} if maxval_drawn else {0, 1})
