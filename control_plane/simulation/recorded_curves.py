"""Learning curves of trials that were trained, for simulated ones to follow.

A simulated trial follows the recorded trial whose hyperparameters are nearest to its own: the
Euclidean distance with every hyperparameter between 0 and 1. Of several that are equally near,
trials take turns. Between two validations the metric lies on the line between them; before the
first and after the last it is theirs. Nothing is made up beyond that: how much was trained past the
end of a record is counted.
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
    """Recorded curves that cannot be followed; `path` names the place within them."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """A recorded trial's validations at `batches`, going up; a metric of None was not finite."""

    hparams: Mapping[str, object]
    batches: tuple[int, ...]
    metrics: tuple[float | None, ...]
    batch_seconds: float | None

    def metric(self, batches: float) -> float | None:
        """The metric after so many batches."""
        place = bisect_left(self.batches, batches)
        if place == len(self.batches):
            return self.metrics[-1]
        after, at = self.metrics[place], self.batches[place]
        if place == 0 or at == batches:
            return after
        before, since = self.metrics[place - 1], self.batches[place - 1]
        if before is None or after is None:
            return before
        return before + (after - before) * (batches - since) / (at - since)


@dataclass(frozen=True, slots=True)
class RecordedCurve:
    """The curve of a recorded trial, for a simulated one. `ratio`: batches of the recorded trial
    that one of the simulated trial is worth.
    """

    trial: RecordedTrial
    batch_ms: float
    ratio: float

    @property
    def known_batches(self) -> int | None:
        """The batches up to the last validation."""
        return int(self.trial.batches[-1] / self.ratio)

    def metric(self, batches: int) -> float | None:
        """The metric after so many batches."""
        return self.trial.metric(batches * self.ratio)


class RecordedCurves:
    """The curves of recorded trials. `exact_matches` counts trials with the very hyperparameters of
    the recorded trial they follow.
    """

    def __init__(
        self,
        trials: Sequence[RecordedTrial],
        space: Group,
        lengths: Lengths,
        unit_seconds: float | None,
    ) -> None:
        """Raises CurvesInvalid for hyperparameters that do not fit the space, and where neither a
        trial nor `unit_seconds` says how long training takes.
        """
        self.exact_matches = 0
        self._trials = trials
        self._space = space
        self._lengths = lengths
        self._unit_seconds = unit_seconds
        self._coordinates = [_trial_coordinates(space, trial, n) for n, trial in enumerate(trials)]
        known = [trial.batch_seconds for trial in trials if trial.batch_seconds is not None]
        self._batch_seconds = median(known) if known else None
        if not known and unit_seconds is None:
            text = "no trial has seconds_per_batch; set its duration with --seconds-per-unit"
            raise CurvesInvalid("trials", text)
        self._curves: dict[int, RecordedCurve] = {}
        self._followed_trials: set[int] = set()

    @property
    def recorded_count(self) -> int:
        """The number of recorded trials."""
        return len(self._trials)

    @property
    def followed_count(self) -> int:
        """The number of recorded trials that some simulated trial follows."""
        return len(self._followed_trials)

    def curve_for(self, trial: TrialState) -> RecordedCurve:
        """The trial's curve: that of the nearest recorded trial."""
        if trial.trial_id not in self._curves:
            self._curves[trial.trial_id] = self._match_trial(trial)
        return self._curves[trial.trial_id]

    def _match_trial(self, trial: TrialState) -> RecordedCurve:
        place = coordinates(self._space, trial.hparams)
        far = [dist(place, other) for other in self._coordinates]
        least = min(far)
        nearest = [number for number, distance in enumerate(far) if distance == least]
        number = nearest[trial.number % len(nearest)]
        self._followed_trials.add(number)
        self.exact_matches += least == 0
        return self._scaled_curve(self._trials[number], trial.hparams)

    def _scaled_curve(
        self, recorded: RecordedTrial, hparams: Mapping[str, object]
    ) -> RecordedCurve:
        ratio = 1.0
        if self._lengths.unit in ("records", "epochs"):
            # Training is counted in records then, of which batches may hold more or fewer.
            ratio = global_batch_size(hparams) / global_batch_size(recorded.hparams)
        seconds = recorded.batch_seconds
        seconds = self._batch_seconds if seconds is None else seconds
        if seconds is not None:
            return RecordedCurve(recorded, 1000 * seconds * ratio, ratio)
        assert self._unit_seconds is not None
        unit_ms = 1000 * self._unit_seconds
        return RecordedCurve(recorded, unit_ms * self._lengths.units(1, hparams), ratio)


def read_curves(text: str, metric: str) -> list[RecordedTrial]:
    """Parse the recorded trials that have validated; docs/simulate.md has the format.

    Raises:
        CurvesInvalid: it is something else, or of another metric.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CurvesInvalid("", f"is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        hint = "`detcloud experiment curves` writes them"
        raise CurvesInvalid("version", f"must be {VERSION} of recorded curves; {hint}")
    if document.get("metric") != metric:
        found = f"{document.get('metric')!r:.60}"
        raise CurvesInvalid("metric", f"is {found}, but the search compares {metric!r:.60}")
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
    if any(one >= other for one, other in pairwise(batches)):
        raise CurvesInvalid(f"{path}.points", "must go up in batches, each at most once")
    seconds = value.get("seconds_per_batch")
    if seconds is not None and not (_is_number(seconds) and seconds > 0):
        text = f"must be a number above 0 or null, not {seconds!r:.40}"
        raise CurvesInvalid(f"{path}.seconds_per_batch", text)
    return RecordedTrial(value["hparams"], batches, tuple(figure for _, figure in pairs), seconds)


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
