"""The learning curves of an experiment's trials, as input for `detcloud simulate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import isfinite
from typing import Any, TypedDict

from detcloud.client.records import MetricReport
from detcloud.client.trial import TrialHandle
from detcloud.shared import training_pace

VERSION = 1
# The speed of a trial is measured over one page of training reports.
TIMED_REPORTS_MAX = 500


class RecordedTrial(TypedDict):
    """The recorded curve of a trial."""

    hparams: dict[str, Any]
    """The hyperparameters."""
    seconds_per_batch: float | None
    """None if the reports do not show the speed."""
    points: list[tuple[int, float | None]]
    """The number of batches and the metric of each validation, by batches. None: not a finite
    number.
    """


class RecordedCurves(TypedDict):
    """The content of a file of curves. docs/simulate.md describes the format."""

    version: int
    """The version of the format: 1."""
    metric: str
    """The name of the searcher's metric."""
    trials: list[RecordedTrial]
    """The trials with validations or without."""


def read_curves(
    trials: Iterable[TrialHandle], metric: str, on_trial: Callable[[int], None]
) -> RecordedCurves:
    """Read the validations of trials, and the seconds per batch, in the order of the trials.

    Every trial gets an entry. A trial without validations with the metric has no points. Raises
    ApiError and Unreachable.

    Args:
        trials: the trials whose reports are read from the cluster.
        metric: the name of the searcher's metric.
        on_trial: called after each trial with the number of trials read so far.
    """
    recorded: list[RecordedTrial] = []
    for trial in trials:
        recorded.append(_read_trial_curve(trial, metric))
        on_trial(len(recorded))
    return {"version": VERSION, "metric": metric, "trials": recorded}


def seconds_per_batch(reports: Iterable[MetricReport]) -> float | None:
    """Return the median of the times per batch between consecutive reports.

    Each time is weighted by its number of batches, so that pauses have little influence. Return
    None if no two consecutive reports differ in both batches and time.
    """
    return training_pace.seconds_per_batch(
        (report["steps_completed"], report["time_ms"]) for report in reports
    )


def _read_trial_curve(trial: TrialHandle, metric: str) -> RecordedTrial:
    validations = list(trial.metrics("validation"))
    points = {
        report["steps_completed"]: _finite_or_none(report["metrics"][metric])
        for report in validations
        if metric in report["metrics"]
    }
    # Times between validations include the validations and checkpoints, as a simulation should.
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
