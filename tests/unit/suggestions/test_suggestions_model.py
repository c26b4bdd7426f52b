"""Conversion of spaces and trials for Optuna, and suggested points."""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

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
)
from control_plane.suggestions.model import Observation, Problem, Stage, suggest_point
from tests.conftest import require

require("optuna")

JSON = (1, True, 1.0, None, [1, {"x": 2}], "1")


def problem(parameter: Parameter, *, maxval_drawn: bool = True, smaller: bool = True) -> Problem:
    return Problem(Group({"x": parameter}), maxval_drawn, smaller, seed=7)


def random_observations(search: Problem, trials: int) -> list[Observation]:
    """Return observations of random points: a third running, a third without a metric."""
    generator, stages = Generator.from_seed(3), list(Stage)
    return [
        Observation(
            draw_hparams(search.space, generator, maxval_drawn=search.maxval_drawn),
            stages[i % 3],
            float(i) if i % 3 else None,
        )
        for i in range(trials)
    ]


def suggested_values(search: Problem, suggestions: int = 20) -> list[object]:
    """Return the values that the model suggests for x after 0, 1, 2 ... observations."""
    known = random_observations(search, suggestions)
    return [suggest_point(search, known[:n], n)["x"] for n in range(suggestions)]


@pytest.mark.parametrize(("maxval_drawn", "expected"), [(True, {3, 4, 5}), (False, {3, 4})])
def test_suggested_integers_have_the_bounds_of_the_era(
    maxval_drawn: bool, expected: set[int]
) -> None:
    assert set(suggested_values(problem(Int(3, 5), maxval_drawn=maxval_drawn))) == expected


def test_integer_with_one_possible_value_is_suggested() -> None:
    assert set(suggested_values(problem(Int(3, 4), maxval_drawn=False), 3)) == {3}


@pytest.mark.parametrize("bounds", [(-(2**63), 2**63 - 1), (2**62, 2**62 + 3), (-(2**62), 5)])
def test_suggested_integers_stay_within_bounds(bounds: tuple[int, int]) -> None:
    for value in suggested_values(problem(Int(*bounds))):
        assert type(value) is int
        assert bounds[0] <= value <= bounds[1]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1e300, 1e300), (1.0, math.nextafter(1.0, 2.0))])
def test_suggested_doubles_stay_below_maxval(bounds: tuple[float, float]) -> None:
    for value in suggested_values(problem(Double(*bounds))):
        assert isinstance(value, float)
        assert bounds[0] <= value < bounds[1]


@pytest.mark.parametrize(
    ("base", "minval", "maxval"), [(10.0, -400.0, -1.0), (2.0, -3.0, 3.0), (0.5, 1.0, 4.0)]
)
def test_suggested_log_values_are_powers_of_the_base(
    base: float, minval: float, maxval: float
) -> None:
    least, most = sorted((base**minval, base**maxval))
    for value in suggested_values(problem(Log(base, minval, maxval))):
        assert isinstance(value, float)
        assert least <= value <= most


def test_log_of_base_one_is_one() -> None:
    assert set(suggested_values(problem(Log(1.0, 0.0, 3.0)), 3)) == {1.0}


def test_categories_may_be_any_json_values() -> None:
    known = {repr(value) for value in JSON}
    suggested = {repr(value) for value in suggested_values(problem(Categorical(JSON)), 60)}
    assert suggested <= known
    assert len(suggested) > 3


def test_constants_and_groups_are_kept() -> None:
    inner = Group({"lr": Double(0.0, 1.0), "only": Categorical(("a",)), "kind": Const([1])})
    point = suggest_point(Problem(Group({"lr": Const(5), "sgd": inner}), True, True, 7), [], 0)
    assert list(point) == ["lr", "sgd"]
    group = point["sgd"]
    assert isinstance(group, dict)
    assert (point["lr"], group["only"], group["kind"]) == (5, "a", [1])
    assert 0 <= group["lr"] < 1


def test_space_without_a_choice_needs_no_model() -> None:
    search = Problem(Group({"x": Const(1), "y": Group({})}), True, True, 7)
    assert suggest_point(search, [], 0) == {"x": 1, "y": {}}


def test_equal_observations_and_numbers_give_equal_points() -> None:
    search = problem(Double(0.0, 1.0))
    known = random_observations(search, 12)
    first, again, other = (suggest_point(search, known, n) for n in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize(("smaller", "best"), [(True, 0.2), (False, 0.8)])
def test_points_approach_good_results(smaller: bool, best: float) -> None:
    search = problem(Double(0.0, 1.0), smaller=smaller)
    # The metric equals x, so that `best` is an end of the observed range.
    points = [0.2 + 0.6 * i / 29 for i in range(30)]
    known = [Observation({"x": x}, Stage.COMPLETE, x) for x in points]
    assert mean_distance(search, known, best) < 0.2


@pytest.mark.parametrize("metric", [None, 0.1])
def test_points_avoid_stopped_trials(metric: float | None) -> None:
    search = problem(Double(0.0, 1.0))
    # Points above 0.5 were stopped, with or without a metric; points below completed.
    known = [
        Observation({"x": i / 20}, Stage.COMPLETE, 0.5)
        if i < 10
        else Observation({"x": i / 20}, Stage.STOPPED, metric)
        for i in range(20)
    ]
    assert mean_distance(search, known, 0.0) < 0.5


def test_concurrent_points_keep_apart() -> None:
    search = problem(Double(0.0, 1.0))
    known = [Observation({"x": i / 10}, Stage.COMPLETE, abs(i / 10 - 0.5)) for i in range(11)]
    alone = mean_distance(search, known, 0.5)
    running = [Observation({"x": 0.5}, Stage.RUNNING)] * 8
    assert mean_distance(search, [*known, *running], 0.5) > alone


def mean_distance(search: Problem, known: Sequence[Observation], place: float) -> float:
    points = [suggest_point(search, known, n) for n in range(10)]
    return sum(distance(point, place) for point in points) / len(points)


def distance(point: Mapping[str, object], place: float) -> float:
    x = point["x"]
    assert isinstance(x, float)
    return abs(x - place)


def test_server_starts_without_importing_optuna() -> None:
    look = "import sys, local_cluster.cluster; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0
