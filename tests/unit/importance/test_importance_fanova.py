"""Importance of hyperparameters, compared with Optuna's fANOVA and with known shares."""

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest

from control_plane.importance.fanova import TREES_MIN, Assessment, assess_importance
from control_plane.searchers.space import Categorical, Double, Leaf, Log
from tests.conftest import require

UNIT: dict[str, Leaf] = {name: Double(0, 1) for name in "abcd"}
LR: dict[str, Leaf] = {"lr": Log(10, -5, -1), **{name: Double(0, 1) for name in "abc"}}

Point = dict[str, float]
Function = tuple[dict[str, Leaf], Callable[[Point], float]]


def v_shape(point: Point) -> float:
    """Return the distance of the exponent from -3, with effects of a and of b and c together."""
    return abs(math.log10(point["lr"]) + 3) + 0.8 * point["a"] + point["b"] * point["c"]


def step(point: Point) -> float:
    return float(point["a"] > 0.7) + 0.2 * point["b"]


# The functions include effects that rise and fall, products, steps, and noise.
FUNCTIONS: dict[str, Function] = {
    "linear": (UNIT, lambda x: 3 * x["a"] + 2 * x["b"] + x["c"]),
    "square": (UNIT, lambda x: (x["a"] - 0.5) ** 2 + 0.1 * x["b"]),
    "V": (LR, v_shape),
    "wave": (UNIT, lambda x: math.sin(2 * math.pi * x["a"]) + 0.5 * x["c"]),
    "product": (UNIT, lambda x: (x["a"] - 0.3) * (x["b"] - 0.3)),
    "step": (UNIT, step),
    "exponential": (UNIT, lambda x: math.exp(3 * x["a"]) + 5 * x["d"]),
    "maximum": (UNIT, lambda x: max(x["a"], x["b"], x["c"], x["d"])),
    "Ishigami": (
        {name: Double(-math.pi, math.pi) for name in "abc"},
        lambda x: (
            math.sin(x["a"]) + 7 * math.sin(x["b"]) ** 2 + 0.1 * x["c"] ** 4 * math.sin(x["a"])
        ),
    ),
    "Rosenbrock": (
        {name: Double(-2, 2) for name in "ab"},
        lambda x: 100 * (x["b"] - x["a"] ** 2) ** 2 + (1 - x["a"]) ** 2,
    ),
}


def draw(space: dict[str, Leaf], count: int, seed: int) -> list[Point]:
    chance = Random(seed)
    points = []
    for _ in range(count):
        point = {}
        for name, parameter in space.items():
            assert isinstance(parameter, Double | Log)
            value = chance.uniform(parameter.minval, parameter.maxval)
            point[name] = 10**value if isinstance(parameter, Log) else value
        points.append(point)
    return points


def assess(function: Function, points: Sequence[Point]) -> Assessment:
    space, compute = function
    assessment = assess_importance(points, [compute(point) for point in points], space)
    assert assessment is not None
    return assessment


def shares(assessment: Assessment) -> dict[str, float]:
    return {hparam.name: hparam.share for hparam in assessment.hparams}


def optuna_shares(function: Function, points: Sequence[Point]) -> dict[str, float]:
    """Return the importance by Optuna. A logarithmic hyperparameter is passed as its exponent."""
    optuna = require("optuna")
    require("sklearn")
    space, compute = function
    distributions = {
        name: optuna.distributions.FloatDistribution(parameter.minval, parameter.maxval)
        for name, parameter in space.items()
        if isinstance(parameter, Double | Log)
    }
    study = optuna.create_study()
    for point in points:
        params = {
            name: math.log10(value) if isinstance(space[name], Log) else value
            for name, value in point.items()
        }
        trial = optuna.trial.create_trial(
            params=params, distributions=distributions, value=compute(point)
        )
        study.add_trial(trial)
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES_MIN, seed=1)
    found: dict[str, float] = evaluator.evaluate(study)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shares_are_those_of_optuna(name: str) -> None:
    function = FUNCTIONS[name]
    points = draw(function[0], 100, seed=5)
    ours, theirs = shares(assess(function, points)), optuna_shares(function, points)
    # Two forests with different random numbers differ by up to a tenth.
    assert ours == pytest.approx(theirs, abs=0.1)


def test_v_shaped_learning_rate_is_important() -> None:
    found = shares(assess(FUNCTIONS["V"], draw(LR, 200, seed=1)))
    # The variances: 2^2 / 12 of the distance, 0.8^2 / 12 of a, 1/2^2 / 12 of each of b and c, and
    # 1 / 144 of b and c together. The learning rate has 0.333 / 0.435 = 0.77.
    assert found["lr"] == pytest.approx(0.77, abs=0.06)
    assert found["a"] == pytest.approx(0.12, abs=0.06)


def test_product_is_an_interaction() -> None:
    # (a - 1/2) (b - 1/2) has no effect of a single hyperparameter.
    points = draw(UNIT, 400, seed=2)
    assessment = assess((UNIT, lambda x: (x["a"] - 0.5) * (x["b"] - 0.5)), points)
    assert assessment.interactions > 0.7
    assert max(shares(assessment).values()) < 0.15


def test_range_contains_the_share_and_narrows_with_more_trials() -> None:
    few, many = (
        assess(FUNCTIONS["linear"], draw(UNIT, count, seed=3)).hparams for count in (25, 400)
    )
    for hparam in (*few, *many):
        assert 0 <= hparam.low <= hparam.share <= hparam.high <= 1
    assert max(hparam.high - hparam.low for hparam in many) < 0.25
    assert max(hparam.high - hparam.low for hparam in few) > 0.25


def test_noise_is_not_explained() -> None:
    chance = Random(4)
    points = draw(UNIT, 100, seed=4)
    assessment = assess_importance(points, [chance.random() for _ in points], UNIT)
    assert assessment is not None
    assert assessment.explained < 0.1
    # A square without noise is predicted for unseen trials.
    assert assess(FUNCTIONS["square"], points).explained > 0.8


def test_category_with_an_effect_is_more_important_than_one_without() -> None:
    space: dict[str, Leaf] = {"x": Categorical(("a", "b", "c")), "y": Categorical((1, 2, 3, 4))}
    chance = Random(6)
    trials: list[dict[str, object]] = [
        {"x": chance.choice("abc"), "y": chance.randint(1, 4)} for _ in range(60)
    ]
    assessment = assess_importance(trials, [float(trial["x"] == "b") for trial in trials], space)
    assert assessment is not None
    assert [(hparam.name, round(hparam.share, 2)) for hparam in assessment.hparams] == [
        ("x", 1.0),
        ("y", 0.0),
    ]


def test_equal_arguments_give_an_equal_result() -> None:
    points = draw(LR, 50, seed=7)
    assert assess(FUNCTIONS["V"], points) == assess(FUNCTIONS["V"], points)


def test_scale_of_the_metric_does_not_matter() -> None:
    points = draw(UNIT, 50, seed=8)
    space, compute = FUNCTIONS["linear"]
    # Products with powers of 2 are exact. Squares of these metrics exceed the range of floats.
    for scale in (2.0**900, 2.0**-900):
        found = assess_importance(points, [scale * compute(point) for point in points], space)
        assert found == assess(FUNCTIONS["linear"], points)


def test_nothing_to_compare_has_no_importance() -> None:
    assert assess_importance([], [], {}) is None
    assert assess_importance([{"x": 1}], [1.0], {}) is None
    assert assess_importance([{"x": 1}, {"x": 1}], [1.0, 2.0], {}) is None
    assert assess_importance([{"x": 1}, {"x": 2}], [0.5, 0.5], {}) is None
    assert assess_importance([{"x": 1}, {"x": 2}], [0.0, 0.0], {}) is None
