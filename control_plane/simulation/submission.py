"""What a configuration submits, and what of it a simulated machine has to know."""

from dataclasses import replace

from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.lengths import Lengths
from control_plane.actors.trial_state import TrialState
from control_plane.config import ExperimentConfig
from control_plane.config.trial_settings import job_of, lifecycle_of, trial_settings
from control_plane.simulation.machines import Pace, Period

POOL = "simulated"


def submission_of(config: ExperimentConfig) -> ExperimentSubmitted:
    """The configuration's experiment, submitted to a pool of its own."""
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
        # Its machines are all alike.
        job=replace(job_of(config, submitted_ms=0), label=""),
    )


def time_lengths_of(config: ExperimentConfig) -> Lengths:
    """How the configuration counts; where it measures training by a time metric, epochs if that is
    its name and an epoch is known, else batches.
    """
    if config.time_metric == "epochs" and config.scale.records_per_epoch:
        return config.scale.lengths("epochs")
    return config.scale.lengths(config.unit)


def pace_of(config: ExperimentConfig) -> Pace:
    """When the configuration's trials validate, and what their time metric is then."""
    if not config.time_metric:
        return Pace(_period_of(config))
    period, lengths = _period_of(config), time_lengths_of(config)
    return Pace(
        lambda trial: period(trial) or config.workload_batches,
        lambda trial, batches: lengths.units(batches, trial.hparams),
    )


def _period_of(config: ExperimentConfig) -> Period:
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
