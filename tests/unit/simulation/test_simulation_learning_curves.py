"""Synthetic learning curves, and the coordinates of hyperparameters."""

import math

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.searchers.space import Categorical, Const, Double, Group, Int, Log
from control_plane.simulation.hyperparameter_coordinates import coordinates
from control_plane.simulation.synthetic_curves import SyntheticCurves
from tests.unit.simulation.virtual import trial

BATCHES = Lengths("batches")
SPACE = Group({"x": Double(0.0, 2.0)})


def test_every_hyperparameter_lies_between_0_and_1() -> None:
    space = Group(
        {
            "z": Int(10, 20),
            "lr": Log(10, -4, 0),
            "fixed": Const(3),
            "inner": Group({"act": Categorical(("relu", "gelu", "silu"))}),
        }
    )
    hparams = {"z": 15, "lr": 0.01, "fixed": 3, "inner": {"act": "gelu"}}
    # By name: inner.act, lr = 10^-2, half way from -4 to 0, and z; nothing for the constant.
    half = math.sqrt(0.5)
    assert coordinates(space, hparams) == pytest.approx((0, half, 0, 0.5, 0.5))
    # Two values of a category are 1 apart, like the two ends of a range.
    other = coordinates(space, {**hparams, "inner": {"act": "relu"}})
    assert math.dist(coordinates(space, hparams), other) == pytest.approx(1)


def test_truth_value_and_number_are_different_categories() -> None:
    space = Group({"x": Categorical((0, False, 1, True))})
    half = math.sqrt(0.5)
    assert coordinates(space, {"x": True}) == (0, 0, 0, half)
    assert coordinates(space, {"x": 0}) == (half, 0, 0, 0)


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({}, "hyperparameter x is missing"),
        ({"x": "a"}, "hyperparameter x must be a number, not 'a'"),
        ({"x": True}, "must be a number, not True"),
        ({"x": math.nan}, "must be a number, not nan"),
    ],
)
def test_what_has_no_place_is_told(hparams: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        coordinates(SPACE, hparams)


def test_groups_and_powers_are_told_by_their_path() -> None:
    space = Group({"a": Group({"b": Log(10, -1, 1)})})
    with pytest.raises(ValueError, match=r"a\.b must be above 0, not 0"):
        coordinates(space, {"a": {"b": 0}})
    with pytest.raises(ValueError, match="a must be a map, not 3"):
        coordinates(space, {"a": 3})


def synthetic(seed: int = 0, *, smaller: bool = True) -> SyntheticCurves:
    return SyntheticCurves(SPACE, BATCHES, 100, smaller, seed, unit_seconds=2.0)


def test_made_up_curves_fall_and_are_the_same_again() -> None:
    course = synthetic().curve_for(trial(x=0.4))
    assert course == synthetic().curve_for(trial(x=0.4))
    losses = [course.metric(batches) for batches in (1, 10, 100)]
    # By noise of 0.005 they differ much less than by the training.
    assert losses == sorted(losses, reverse=True)
    assert 0 < losses[2] < losses[0] < 1.1
    assert course.known_batches is None


def test_seeds_hyperparameters_and_trials_change_a_made_up_curve() -> None:
    course = synthetic().curve_for(trial(x=0.4))
    others = (
        synthetic(1).curve_for(trial(x=0.4)),
        synthetic().curve_for(trial(x=0.6)),
        synthetic().curve_for(trial(seed=2, x=0.4)),
    )
    assert all(other.metric(50) != course.metric(50) for other in others)
    # A lognormal with a deviation of 0.25: within a factor of 3 in all but a few of a million.
    assert all(2000 / 3 < one.batch_ms < 2000 * 3 for one in (course, *others))


def test_a_metric_to_be_maximised_rises() -> None:
    down, up = synthetic(), synthetic(smaller=False)
    assert up.curve_for(trial(x=1.0)).metric(7) == 1 - down.curve_for(trial(x=1.0)).metric(7)


def test_without_hyperparameters_trials_differ_by_chance_alone() -> None:
    courses = SyntheticCurves(Group({}), BATCHES, 10, True)
    assert courses.curve_for(trial()).floor == courses.curve_for(trial(seed=9)).floor
