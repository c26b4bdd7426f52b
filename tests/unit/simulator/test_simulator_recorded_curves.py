"""Tests of recorded learning curves: the file, the nearest record and the interpolation."""

import json

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.searchers.space import Double, Group
from simulator.search.recorded_curves import (
    CurvesInvalid,
    RecordedCurves,
    RecordedTrial,
    read_curves,
)
from tests.unit.simulation.virtual import trial

BATCHES = Lengths("batches")
SPACE = Group({"x": Double(0.0, 2.0)})


def recorded_trial(
    *points: tuple[int, float | None], seconds: float | None = 1.0, **hparams: object
) -> RecordedTrial:
    return RecordedTrial(
        hparams, tuple(at for at, _ in points), tuple(value for _, value in points), seconds
    )


def test_recorded_metric_is_interpolated_between_validations() -> None:
    trial = recorded_trial((10, 4.0), (20, 2.0), (30, None))
    # Constant before the first validation; 12 is 2 / 10 of the way from 4 to 2.
    assert [trial.metric(at) for at in (1, 10, 12, 20)] == [4.0, 4.0, pytest.approx(3.6), 2.0]
    # No interpolation towards a missing metric.
    assert [trial.metric(at) for at in (25, 30, 99)] == [2.0, None, None]


def test_trial_follows_the_nearest_record() -> None:
    trials = [recorded_trial((5, 1.0), x=0.0), recorded_trial((5, 2.0), seconds=3.0, x=2.0)]
    curves = RecordedCurves(trials, SPACE, BATCHES, None)
    # 0.9 / 2 is nearer to 0 than to 1; 1.1 / 2 is not.
    assert curves.curve_for(trial(0, x=0.9)).metric(5) == 1.0
    far = curves.curve_for(trial(1, x=1.1))
    assert (far.metric(5), far.batch_ms, far.known_batches) == (2.0, 3000.0, 5)
    assert (curves.recorded_count, curves.followed_count, curves.exact_matches) == (2, 2, 0)
    assert curves.curve_for(trial(2, x=2.0)) == far
    assert (curves.followed_count, curves.exact_matches) == (2, 1)
    # A repeated request returns an equal curve and counts once.
    assert curves.curve_for(trial(2, x=2.0)) == far
    assert curves.exact_matches == 1


def test_trials_alternate_between_equally_near_records() -> None:
    trials = [recorded_trial((5, float(n)), x=1.0) for n in range(3)]
    curves = RecordedCurves(trials, SPACE, BATCHES, None)
    metrics = [curves.curve_for(trial(n, x=1.0)).metric(5) for n in range(4)]
    assert metrics == [0.0, 1.0, 2.0, 0.0]


def test_missing_speed_is_the_median_of_the_recorded_speeds() -> None:
    trials = [
        recorded_trial((5, 1.0), seconds=None, x=0.0),
        recorded_trial((5, 1.0), seconds=1.0, x=1.0),
        recorded_trial((5, 1.0), seconds=2.0, x=2.0),
    ]
    curves = RecordedCurves(trials, SPACE, BATCHES, None)
    assert curves.curve_for(trial(x=0.0)).batch_ms == 1500.0
    alone = RecordedCurves(trials[:1], SPACE, BATCHES, 4.0)
    assert alone.curve_for(trial(x=0.0)).batch_ms == 4000.0
    with pytest.raises(CurvesInvalid, match="--seconds-per-unit"):
        RecordedCurves(trials[:1], SPACE, BATCHES, None)


def test_record_of_a_different_batch_size_is_scaled_by_records() -> None:
    trials = [recorded_trial((10, 1.0), (20, 0.0), x=0.0, global_batch_size=32)]
    epochs = Lengths("epochs", records_per_epoch=320)
    curve = RecordedCurves(trials, SPACE, epochs, None).curve_for(
        trial(x=0.0, global_batch_size=16)
    )
    # A batch of 16 is half a batch of 32: 30 batches equal 15 recorded batches at half the time.
    assert curve.metric(30) == 0.5
    assert (curve.batch_ms, curve.known_batches) == (500.0, 40)


def document(**changed: object) -> str:
    record = {"hparams": {"x": 1.0}, "seconds_per_batch": 0.5, "points": [[10, 0.5], [20, None]]}
    return json.dumps({"version": 1, "metric": "loss", "trials": [record], **changed})


def test_reads_file_of_curves() -> None:
    silent = {"hparams": {"x": 1.0}, "points": []}
    complete = json.loads(document())["trials"][0]
    assert read_curves(document(trials=[silent, complete]), "loss") == [
        RecordedTrial({"x": 1.0}, (10, 20), (0.5, None), 0.5)
    ]


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{", "", "is not valid JSON"),
        ("[]", "version", "must be 1; `detcloud experiment curves`"),
        (document(metric="accuracy"), "metric", "is 'accuracy', but the search compares 'loss'"),
        (document(trials={}), "trials", "must be a list"),
        (document(trials=[]), "trials", "no trial with a validation"),
        (document(trials=[3]), "trials[0]", "must be a map"),
        (document(trials=[{"hparams": {}}]), "trials[0].points", "must be a list"),
        (
            document(trials=[{"hparams": {}, "points": [[1, 2.0], [1, "x"]]}]),
            "trials[0].points[1]",
            r"must be \[batches, metric\]",
        ),
        (
            document(trials=[{"hparams": {}, "points": [[2, 1.0], [1, 1.0]]}]),
            "trials[0].points",
            "must be strictly increasing",
        ),
        (
            document(trials=[{"hparams": {}, "points": [[1, 1.0]], "seconds_per_batch": 0}]),
            "trials[0].seconds_per_batch",
            "above 0 or null, not 0",
        ),
        (
            document(trials=[{"hparams": {}, "points": [[1, float("inf")]]}]),
            "trials[0].points[0]",
            "a finite number or null",
        ),
    ],
)
def test_rejects_invalid_curves_with_the_path(text: str, path: str, message: str) -> None:
    with pytest.raises(CurvesInvalid, match=message) as raised:
        read_curves(text, "loss")
    assert raised.value.path == path


def test_rejects_records_with_foreign_hyperparameters() -> None:
    trials = [recorded_trial((5, 1.0), x=0.0), recorded_trial((5, 1.0), y=0.0)]
    with pytest.raises(CurvesInvalid, match="hyperparameter x is missing") as raised:
        RecordedCurves(trials, SPACE, BATCHES, None)
    assert raised.value.path == "trials[1].hparams"
