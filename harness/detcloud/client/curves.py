"""The learning curves of an experiment's trials, as `detcloud simulate` follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, TypedDict

from detcloud.client.records import MetricReport
from detcloud.client.trial import Trial

if TYPE_CHECKING:
    from detcloud.client.experiment import Experiment

VERSION = 1
# Reports that a trial's speed is taken from: one page of the API's.
TIMED_REPORTS_MAX = 500


class RecordedTrial(TypedDict):
    """One trial: (batches, metric) of its validations, None for what was no finite number.

    `seconds_per_batch` is None where no two of its reports show it.
    """

    hparams: dict[str, Any]
    seconds_per_batch: float | None
    points: list[tuple[int, float | None]]


class RecordedCurves(TypedDict):
    """The file of curves that docs/simulate.md describes."""

    version: int
    metric: str
    trials: list[RecordedTrial]


def read_curves(
    experiment: Experiment, on_trial: Callable[[int], None] = lambda read: None
) -> RecordedCurves:
    """Reads every trial's validations; `on_trial` gets the number of trials read."""
    recorded: list[RecordedTrial] = []
    for trial in experiment.trials():
        recorded.append(_read_trial_curve(trial, experiment.metric))
        on_trial(len(recorded))
    return {"version": VERSION, "metric": experiment.metric, "trials": recorded}


def seconds_per_batch(reports: Iterable[MetricReport]) -> float | None:
    """Median time of a batch, weighted by batches so that pauses count little; None: unknown."""
    rates: list[tuple[float, int]] = []
    for before, after in pairwise(reports):
        batches = after["steps_completed"] - before["steps_completed"]
        took_ms = after["time_ms"] - before["time_ms"]
        if batches > 0 and took_ms > 0:
            rates.append((took_ms / batches / 1000, batches))
    batches_left = sum(batches for _, batches in rates) / 2
    for rate, batches in sorted(rates):
        batches_left -= batches
        if batches_left <= 0:
            return rate
    return None


def _read_trial_curve(trial: Trial, metric: str) -> RecordedTrial:
    validations = list(trial.metrics("validation"))
    points = {
        report["steps_completed"]: _finite_or_none(report["metrics"][metric])
        for report in validations
        if metric in report["metrics"]
    }
    # From one validation to the next, with the time of validations and checkpoints.
    seconds = seconds_per_batch(validations)
    if seconds is None:
        seconds = seconds_per_batch(islice(trial.metrics("training"), TIMED_REPORTS_MAX))
    return {
        "hparams": trial.hparams,
        "seconds_per_batch": seconds,
        "points": sorted(points.items()),
    }


def _finite_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isfinite(value) else None
