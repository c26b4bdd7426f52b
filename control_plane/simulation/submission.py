"""The conversion of an experiment's configuration to the inputs of a simulation."""

from dataclasses import replace

from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.trial.state import TrialState
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.trial_settings import job_of, lifecycle_of, trial_settings
from control_plane.findings import value_text
from control_plane.simulation.machines import ValidationPeriod, ValidationSchedule

POOL = "simulated"


def simulated_submission(config: ExperimentConfig) -> ExperimentSubmitted:
    """Return the message that submits the configuration's experiment, as experiment 1.

    The pool is POOL instead of the pool of the configuration.
    """
    return ExperimentSubmitted(
        experiment_id=1,
        owner="",
        name=config.name or config.description or "",
        config="",
        code_sha256="",
        plan=config.search_plan(),
        settings=trial_settings(config, POOL, submitted_ms=0),
        metric=config.searcher.metric,
        searcher=config.searcher.name,
        paused=False,
        rules=lifecycle_of(config),
        time_metric=config.time_metric,
        # Simulated machines have no labels and no devices.
        job=replace(job_of(config, submitted_ms=0), label="", slot_type="", slot_memory=0),
    )


def time_lengths(config: ExperimentConfig) -> Lengths:
    """Return the conversion between batches and the unit in which the search measures training.

    The unit is the unit of the configuration's lengths or, if a time metric is set, the unit that
    the time metric names.

    Raises:
        TimeMetricUnknown: the time metric is not a unit of training, or is `epochs` and the
            configuration does not set `records_per_epoch`.
    """
    scale = config.scale
    match config.time_metric:
        case "":
            return scale.lengths(config.unit)
        case "batches" | "records" as unit:
            return scale.lengths(unit)
        case "epochs" if scale.records_per_epoch:
            return scale.lengths("epochs")
        case name:
            raise TimeMetricUnknown(name)


class TimeMetricUnknown(ValueError):
    """The error for a time metric whose growth with training is unknown."""

    def __init__(self, name: str) -> None:
        """Set the message for the time metric `name`."""
        hint = "; set records_per_epoch" if name == "epochs" else ""
        super().__init__(
            f"cannot be simulated: it is not known how {value_text(name)} grows with training{hint}"
        )


def validation_schedule(config: ExperimentConfig) -> ValidationSchedule:
    """Return the validation schedule of the configuration's trials.

    With a time metric and without a `min_validation_period`, trials validate once per workload.

    Raises:
        TimeMetricUnknown: see `time_lengths`.
    """
    if not config.time_metric:
        return ValidationSchedule(_validation_period(config))
    period, lengths = _validation_period(config), time_lengths(config)
    return ValidationSchedule(
        lambda trial: period(trial) or config.workload_batches,
        lambda trial, batches: lengths.units(batches, trial.hparams),
    )


def _validation_period(config: ExperimentConfig) -> ValidationPeriod:
    """Return the function that converts `min_validation_period` to batches of a trial.

    The function returns 0 (validate at the requested length only) if the configuration sets no
    period, and for a trial without a valid batch size. The function raises no error.
    """

    def period(trial: TrialState) -> int:
        try:
            return config.min_validation_batches(trial.hparams)
        except ValueError:
            # The trial has no valid batch size. The agent's specification uses 0, too.
            return 0

    if not config.lengths().get(("min_validation_period",)):
        return lambda trial: 0
    return period
