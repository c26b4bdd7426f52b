"""Recorded learning curves of real trials, for simulated trials.

A simulated trial follows the recorded trial with the nearest hyperparameters: the smallest
Euclidean distance of coordinates from 0 to 1. If several recorded trials are equally near, the
simulated trial's number selects one of these. The metric is interpolated linearly between two
validations, and constant before the first and after the last validation. The simulation counts the
training after the last validation.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import dist, isfinite
from statistics import median

from control_plane.actors.lengths import Lengths, global_batch_size
from control_plane.actors.trial.state import TrialState
from control_plane.searchers.space import Group
from control_plane.simulation.hyperparameter_coordinates import coordinates

VERSION = 1


class CurvesInvalid(ValueError):
    """The error for invalid recorded curves. `path` is the place in the document, or ""."""

    def __init__(self, path: str, message: str) -> None:
        """Set the path and the message."""
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """A recorded trial with the results of all validations."""

    hparams: Mapping[str, object]
    batches: tuple[int, ...]
    """The number of trained batches at each validation; strictly increasing."""
    metrics: tuple[float | None, ...]
    """The metric of each validation. None: the metric was not finite."""
    batch_seconds: float | None
    """The duration of one batch. None: unknown."""

    def metric(self, batches: float) -> float | None:
        """Return the metric after `batches` batches, interpolated between two validations.

        Return the first metric before the first validation, and the last metric after the last. If
        either of the two metrics is None (not finite), return the earlier metric, also if None.
        """
        place = bisect_left(self.batches, batches)
        if place == len(self.batches):
            return self.metrics[-1]
        metric_after, batches_after = self.metrics[place], self.batches[place]
        if place == 0 or batches_after == batches:
            return metric_after
        metric_before, batches_before = self.metrics[place - 1], self.batches[place - 1]
        if metric_before is None or metric_after is None:
            return metric_before
        trained = batches - batches_before
        return metric_before + (metric_after - metric_before) * trained / (
            batches_after - batches_before
        )


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """The learning curve of a recorded trial, scaled for a simulated trial; see LearningCurve."""

    trial: RecordedTrial
    batch_ms: float
    ratio: float
    """The number of batches of the recorded trial that equals one batch of the simulated trial."""

    @property
    def known_batches(self) -> int | None:
        """Return the number of the simulated trial's batches up to the last recorded validation."""
        return int(self.trial.batches[-1] / self.ratio)

    def metric(self, batches: int) -> float | None:
        """Return the metric after `batches` batches of the simulated trial. None: not finite."""
        return self.trial.metric(batches * self.ratio)


class RecordedCurves:
    """The learning curves of recorded trials; see LearningCurves.

    `exact_matches`: the number of simulated trials with exactly the hyperparameters of a recorded
    trial.
    """

    def __init__(
        self,
        trials: Sequence[RecordedTrial],
        space: Group,
        lengths: Lengths,
        unit_seconds: float | None,
    ) -> None:
        """Prepare the recorded trials for the search space.

        Args:
            lengths: the unit in which the search measures training.
            unit_seconds: the duration of one unit, used if no trial has a duration. If some have
                one, the median serves for the others.

        Raises:
            CurvesInvalid: hyperparameters of a trial do not fit the space, or neither a trial nor
                `unit_seconds` has a duration.
        """
        self.exact_matches = 0
        self._trials = trials
        self._space = space
        self._lengths = lengths
        self._unit_seconds = unit_seconds
        self._coordinates = [_trial_coordinates(space, trial, n) for n, trial in enumerate(trials)]
        durations = [trial.batch_seconds for trial in trials if trial.batch_seconds is not None]
        self._batch_seconds = median(durations) if durations else None
        if not durations and unit_seconds is None:
            text = "no trial has seconds_per_batch; set its duration with --seconds-per-unit"
            raise CurvesInvalid("trials", text)
        self._curves: dict[int, RecordedCurve] = {}
        self._followed_trials: set[int] = set()

    @property
    def recorded_count(self) -> int:
        """Return the number of recorded trials."""
        return len(self._trials)

    @property
    def followed_count(self) -> int:
        """Return the number of recorded trials that at least one simulated trial follows."""
        return len(self._followed_trials)

    def curve_for(self, trial: TrialState) -> RecordedCurve:
        """Return the learning curve of the nearest recorded trial.

        The first call for a trial updates `followed_count` and `exact_matches`.
        """
        if trial.trial_id not in self._curves:
            self._curves[trial.trial_id] = self._match_trial(trial)
        return self._curves[trial.trial_id]

    def _match_trial(self, trial: TrialState) -> RecordedCurve:
        place = coordinates(self._space, trial.hparams)
        distances = [dist(place, other) for other in self._coordinates]
        least_distance = min(distances)
        nearest = [n for n, distance in enumerate(distances) if distance == least_distance]
        number = nearest[trial.number % len(nearest)]
        self._followed_trials.add(number)
        self.exact_matches += least_distance == 0
        return self._scaled_curve(self._trials[number], trial.hparams)

    def _scaled_curve(
        self, recorded: RecordedTrial, hparams: Mapping[str, object]
    ) -> RecordedCurve:
        """Return the curve of a recorded trial for a simulated trial with `hparams`.

        The duration of a batch is that of the recorded trial, the median of all recorded trials,
        or the given duration of a unit, in this order.
        """
        ratio = 1.0
        if self._lengths.unit in ("records", "epochs"):
            # Training is then counted in records, and the two batch sizes can differ.
            ratio = global_batch_size(hparams) / global_batch_size(recorded.hparams)
        seconds = recorded.batch_seconds
        seconds = self._batch_seconds if seconds is None else seconds
        if seconds is not None:
            return RecordedCurve(recorded, 1000 * seconds * ratio, ratio)
        assert self._unit_seconds is not None
        unit_ms = 1000 * self._unit_seconds
        return RecordedCurve(recorded, unit_ms * self._lengths.units(1, hparams), ratio)


def read_curves(text: str, metric: str) -> list[RecordedTrial]:
    """Return the recorded trials with at least one validation, from JSON.

    The format is described in docs/simulate.md.

    Raises:
        CurvesInvalid: the text has another format, belongs to another metric than `metric`, or
            contains no trial with a validation.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CurvesInvalid("", f"is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        hint = "`detcloud experiment curves` writes recorded curves"
        raise CurvesInvalid("version", f"must be {VERSION}; {hint}")
    if document.get("metric") != metric:
        recorded = f"{document.get('metric')!r:.60}"
        raise CurvesInvalid("metric", f"is {recorded}, but the search compares {metric!r:.60}")
    listed = document.get("trials")
    if not isinstance(listed, list):
        raise CurvesInvalid("trials", "must be a list of trials")
    trials = [_parse_trial(f"trials[{n}]", value) for n, value in enumerate(listed)]
    trials = [trial for trial in trials if trial.batches]
    if not trials:
        raise CurvesInvalid("trials", "has no trial with a validation to follow")
    return trials


def _parse_trial(path: str, value: object) -> RecordedTrial:
    if not isinstance(value, dict) or not isinstance(value.get("hparams"), dict):
        raise CurvesInvalid(path, "must be a map with hparams and points")
    points = value.get("points")
    if not isinstance(points, list):
        raise CurvesInvalid(f"{path}.points", "must be a list of [batches, metric]")
    pairs = [_parse_point(f"{path}.points[{n}]", point) for n, point in enumerate(points)]
    batches = tuple(at for at, _ in pairs)
    if any(before >= after for before, after in pairwise(batches)):
        raise CurvesInvalid(f"{path}.points", "must be strictly increasing in batches")
    seconds = value.get("seconds_per_batch")
    if seconds is not None and not (_is_number(seconds) and seconds > 0):
        text = f"must be a number above 0 or null, not {seconds!r:.40}"
        raise CurvesInvalid(f"{path}.seconds_per_batch", text)
    return RecordedTrial(value["hparams"], batches, tuple(metric for _, metric in pairs), seconds)


def _parse_point(path: str, value: object) -> tuple[int, float | None]:
    match value:
        case [int(batches), None] if batches >= 0:
            return batches, None
        case [int(batches), int(metric) | float(metric)] if batches >= 0 and _is_number(metric):
            return batches, metric
    text = f"must be [batches, metric], a finite number or null, not {value!r:.60}"
    raise CurvesInvalid(path, text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _trial_coordinates(space: Group, trial: RecordedTrial, number: int) -> tuple[float, ...]:
    try:
        return coordinates(space, trial.hparams)
    except ValueError as error:
        raise CurvesInvalid(f"trials[{number}].hparams", str(error)) from None
