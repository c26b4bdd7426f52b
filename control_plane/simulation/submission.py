"""The submission of a configuration's experiment to a simulated cluster."""

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
    """The submission of the configuration's experiment to a pool of its own."""
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
        # The simulated machines are all alike and have no labels.
        job=replace(job_of(config, submitted_ms=0), label=""),
    )


def time_lengths(config: ExperimentConfig) -> Lengths:
    """The unit of the configuration's training lengths, or of its time metric if it has one.

    Raises:
        TimeMetricUnknown: the time metric is no unit of training.
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
    """Nobody knows how a time metric grows with training."""

    def __init__(self, name: str) -> None:
        hint = "; give records_per_epoch" if name == "epochs" else ""
        super().__init__(
            f"cannot be simulated: it is not known how {value_text(name)} grows with training{hint}"
        )


def validation_schedule(config: ExperimentConfig) -> ValidationSchedule:
    """The schedule of the validations of the configuration's trials, and their time metric."""
    if not config.time_metric:
        return ValidationSchedule(_validation_period(config))
    period, lengths = _validation_period(config), time_lengths(config)
    return ValidationSchedule(
        lambda trial: period(trial) or config.workload_batches,
        lambda trial, batches: lengths.units(batches, trial.hparams),
    )


def _validation_period(config: ExperimentConfig) -> ValidationPeriod:
    """The configuration's `min_validation_period`."""

    def period(trial: TrialState) -> int:
        try:
            return config.min_validation_batches(trial.hparams)
        except ValueError:
            # Without a usable batch size; the agent's specification reads it so, too.
            return 0

    if not config.lengths().get(("min_validation_period",)):
        return lambda trial: 0
    return period
