"""Tests of synthetic learning curves and of the coordinates of hyperparameters."""

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
def test_rejects_hyperparameters_without_a_coordinate(
    hparams: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        coordinates(SPACE, hparams)


def test_errors_name_the_path_of_the_hyperparameter() -> None:
    space = Group({"a": Group({"b": Log(10, -1, 1)})})
    with pytest.raises(ValueError, match=r"a\.b must be above 0, not 0"):
        coordinates(space, {"a": {"b": 0}})
    with pytest.raises(ValueError, match="a must be a map, not 3"):
        coordinates(space, {"a": 3})


def synthetic(seed: int = 0, *, smaller: bool = True) -> SyntheticCurves:
    return SyntheticCurves(SPACE, BATCHES, 100, smaller, seed, unit_seconds=2.0)


def test_synthetic_curves_fall_and_repeat() -> None:
    base_curve = synthetic().curve_for(trial(x=0.4))
    assert base_curve == synthetic().curve_for(trial(x=0.4))
    losses = [base_curve.metric(batches) for batches in (1, 10, 100)]
    # The noise of 0.005 is much smaller than the progress of the training.
    assert losses == sorted(losses, reverse=True)
    assert 0 < losses[2] < losses[0] < 1.1
    assert base_curve.known_batches is None


def test_seed_hyperparameters_and_trial_change_a_synthetic_curve() -> None:
    base_curve = synthetic().curve_for(trial(x=0.4))
    others = (
        synthetic(1).curve_for(trial(x=0.4)),
        synthetic().curve_for(trial(x=0.6)),
        synthetic().curve_for(trial(seed=2, x=0.4)),
    )
    assert all(other.metric(50) != base_curve.metric(50) for other in others)
    # A lognormal with a deviation of 0.25: within a factor of 3 in all but a few of a million.
    assert all(2000 / 3 < curve.batch_ms < 2000 * 3 for curve in (base_curve, *others))


def test_synthetic_metric_to_maximise_rises() -> None:
    down, up = synthetic(), synthetic(smaller=False)
    assert up.curve_for(trial(x=1.0)).metric(7) == 1 - down.curve_for(trial(x=1.0)).metric(7)


def test_without_hyperparameters_trials_differ_by_chance_alone() -> None:
    curves = SyntheticCurves(Group({}), BATCHES, 10, True)
    assert curves.curve_for(trial()).floor == curves.curve_for(trial(seed=9)).floor
