"""The hyperparameters of copies, compared with the rules and with draws of numpy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from control_plane.searchers.exploration import Exploration, explore_hparams
from control_plane.searchers.randomness import Generator
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Log, Parameter

SEED = 11
BOTH_WAYS = (False, True)


def perturb(
    parameter: Parameter,
    value: object,
    *,
    up: bool,
    factor: float = 0.2,
    integers_move: bool = True,
) -> object:
    """Return the value times the smaller factor or, with `up`, times the larger factor."""
    exploration = Exploration(0.0, factor)
    for seed in range(100):
        first, second = np.random.RandomState(seed).random_sample(2)
        if first >= 0 and bool(second >= 0.5) is up:
            generator = Generator.from_seed(seed)
            found = explore_hparams(
                Group({"x": parameter}),
                {"x": value},
                generator,
                exploration,
                maxval_drawn=False,
                integers_move=integers_move,
            )
            return found["x"]
    raise AssertionError


@pytest.mark.parametrize(
    ("parameter", "value", "less", "more"),
    [
        # 0.8 * 9 = 7.2 down to 7; 1.2 * 9 = 10.8 up to 11.
        (Int(0, 100), 9, 7, 11),
        # 0.8 * 10 = 8 but at least 9; 1.2 * 10 = 12 but at most 11.
        (Int(9, 11), 10, 9, 11),
        # 0.8 * -9 = -7.2, away from -9 to -7; 1.2 * -9 = -10.8, away from -9 to -11.
        (Int(-100, 0), -9, -7, -11),
        # Both products of 0 are 0, and 0.8 * -1 = -0.8. The change is at least 1.
        (Int(-100, 100), 0, -1, 1),
        (Int(-100, 100), -1, 0, -2),
        (Int(-100, 100), 1, 0, 2),
        # Bounds hold.
        (Int(0, 100), 0, 0, 1),
        (Int(-100, 0), 0, -1, 0),
        # A float rounds 2**62 + 1 to 2**62, which does not affect the products by much.
        (Int(0, 2**63 - 1), 2**62 + 1, int(0.8 * 2**62), int(1.2 * 2**62)),
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
def test_value_is_multiplied_within_bounds(
    parameter: Parameter, value: object, less: object, more: object
) -> None:
    down, up = perturb(parameter, value, up=False), perturb(parameter, value, up=True)
    assert (down, up) == (pytest.approx(less), pytest.approx(more))
    assert type(down) is type(value)


@pytest.mark.parametrize("factor", [0.001, 0.2, 0.5, 1.0])
def test_integers_change_by_at_least_1_in_both_directions(factor: float) -> None:
    for value in [*range(-30, 31), 10**9, -(10**9), 2**53 + 1, -(2**53) - 1]:
        ends = {perturb(Int(-(2**60), 2**60), value, up=up, factor=factor) for up in BOTH_WAYS}
        assert len(ends) == 2
        assert min(ends) <= value - 1, value  # type: ignore[type-var]
        assert max(ends) >= value + 1, value  # type: ignore[type-var]


def test_factor_0_rounds_to_the_same_integer() -> None:
    assert [perturb(Int(-9, 9), n, up=up, factor=0.0) for n in (-1, 0, 1) for up in BOTH_WAYS] == [
        -1, -1, 0, 0, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "less", "more"),
    # Determined 0.12: floor(0.8 * n) and ceil(1.2 * n).
    [(9, 7, 11), (1, 0, 2), (0, 0, 0), (-1, -1, -1), (-4, -4, -4), (-5, -4, -6), (-9, -8, -10)],
)
def test_setting_keeps_rule_of_determined(value: int, less: int, more: int) -> None:
    moved = [perturb(Int(-99, 99), value, up=up, integers_move=False) for up in BOTH_WAYS]
    assert moved == [less, more]


@pytest.mark.parametrize("seed", range(5))
def test_each_hyperparameter_draws_twice_in_sorted_order(seed: int) -> None:
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
    explored = explore_hparams(space, before, generator, Exploration(0.5, 0.25), maxval_drawn=False)
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
    assert explored == pytest.approx(expected)
    assert generator.draw_uniform() == numpy.random_sample()


def test_group_is_explored_member_by_member() -> None:
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
def test_resampled_value_is_drawn_like_first_sample(maxval_drawn: bool) -> None:
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
