"""Query of an experiment's pace: the measured time and cost of a unit of training.

A request reads a bounded number of trials, and the reports of TIMED_TRIALS_MAX trials.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR, MS_PER_HOUR
from control_plane.actors.experiment.bill import Meter, Meters
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import (
    SUMMARIES_PER_PART,
    Summaries,
    TrialSummary,
)
from control_plane.actors.trial.state import TrialState
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.queries.metrics import list_metrics
from control_plane.queries.pages import PageRequest
from control_plane.services import Services
from detcloud.shared.training_pace import seconds_per_batch

PARTS_MAX: Final = 10
"""The most parts with summaries of trials that are read: the first 640 trials."""
TIMED_TRIALS_MAX: Final = 3
"""The most trials whose reports are read: the trials with the most training."""
REPORTS_MAX: Final = 200
"""The most reports of a group that are read of a trial."""
_GROUPS = ("validation", "training")


class Pace(Answer):
    """The measured pace of an experiment's training.

    `units` and `cost` are the sums of the first `trials` trials: the training in `unit`, and the
    dollars for slots with a price, or null. `seconds_per_unit` is the median of trials with
    `slots_per_trial` slots. `missing` says why `seconds_per_unit` is null, and is "" otherwise.
    """

    experiment_id: int
    unit: str
    slots_per_trial: int
    trials: int
    units: float
    cost: float | None
    seconds_per_unit: float | None
    cost_per_unit: float | None
    missing: str = ""


class _MeasuredTrial(NamedTuple):
    """A trial with training."""

    summary: TrialSummary
    meter: Meter | None
    """The meter of the trial's cost. None: no machine of the trial had a price."""


def describe_pace(services: Services, experiment_id: int) -> Pace:
    """Return the measured time and cost of a unit of an experiment's training.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    state, definition = get_experiment(services, experiment_id)
    trials = [trial for trial in _read_trials(services, state) if trial.summary.units > 0]
    units = sum(trial.summary.units for trial in trials)
    meters = [trial.meter for trial in trials if trial.meter is not None]
    micros = sum(_cost_micros(meter, services.now_ms()) for meter in meters)
    cost = micros / MICROS_PER_DOLLAR if micros else None
    missing, seconds = "", None
    measures_training = not state.time_metric and not state.is_open_ended
    if not measures_training:
        missing = "the lengths of the search do not measure training"
    elif not trials:
        missing = "no trial has reported any training"
    else:
        seconds = _seconds_per_unit(services, [trial.summary for trial in trials])
        missing = "" if seconds else "no trial has two reports at different times"
    return Pace(
        experiment_id=experiment_id,
        unit=definition.settings.lengths.unit,
        slots_per_trial=definition.settings.slots,
        trials=len(trials),
        units=units,
        cost=cost,
        seconds_per_unit=seconds,
        cost_per_unit=cost / units if cost is not None and measures_training else None,
        missing=missing,
    )


def _read_trials(services: Services, state: ExperimentState) -> Iterator[_MeasuredTrial]:
    """Yield the trials of the experiment's first PARTS_MAX parts with the meters."""
    address = addresses.experiment(state.experiment_id)
    count = min(PARTS_MAX, -(-state.trials // SUMMARIES_PER_PART))
    places = [
        (address, f"{kind}/{index}") for kind in ("trials", "meters") for index in range(count)
    ]
    parts = services.engine.read_parts(places)
    meters: dict[int, Meter] = {}
    for part in parts[count:]:
        if isinstance(part, Meters):
            meters |= part.trials
    for index, part in enumerate(parts[:count]):
        trials = part.trials if isinstance(part, Summaries) else ()
        for number, summary in enumerate(trials, index * SUMMARIES_PER_PART):
            yield _MeasuredTrial(summary, meters.get(number))


def _cost_micros(meter: Meter, now_ms: int) -> int:
    """Return the cost of a trial up to now, in micro-dollars."""
    held_ms = max(0, now_ms - meter.since_ms) if meter.holds_slots else 0
    return meter.cost_micros + meter.rate_micros * held_ms // MS_PER_HOUR


def _seconds_per_unit(services: Services, summaries: Sequence[TrialSummary]) -> float | None:
    """Return the median time of a unit in the trials with the most training. Return None if no
    trial has reports at different times.
    """
    longest = sorted(summaries, key=lambda summary: -summary.units)[:TIMED_TRIALS_MAX]
    states = services.experiments.read_trials(summary.trial_id for summary in longest)
    paces = [
        seconds
        for trial in states
        if trial is not None and (seconds := _trial_pace(services, trial)) is not None
    ]
    return median(paces) if paces else None


def _trial_pace(services: Services, trial: TrialState) -> float | None:
    """Return the time of a unit of a trial's training in seconds. Return None without two reports
    at different times.

    Times between validations are preferred, because these include validations and checkpoints.
    """
    batches = _batches_per_unit(trial)
    for group in _GROUPS if batches else ():
        reports = list_metrics(services, trial, group, PageRequest(REPORTS_MAX)).items
        seconds = seconds_per_batch((one.steps_completed, one.time_ms) for one in reports)
        if seconds is not None:
            return seconds * batches
    return None


def _batches_per_unit(trial: TrialState) -> float:
    """Return the batches of a unit of training, which may be a fraction. Return 0 if unknown."""
    if trial.counts_epochs:
        return trial.steps / trial.epochs_done if trial.epochs_done else 0.0
    units = trial.settings.lengths.units(1, trial.hparams)
    return 1 / units if units else 0.0
