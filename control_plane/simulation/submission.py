"""What a configuration submits, and what of it a simulated machine has to know."""

from control_plane.actors.experiment_messages import ExperimentSubmitted
from control_plane.actors.lengths import Lengths
from control_plane.actors.records import TrialSettings
from control_plane.actors.rules import LENGTH_ERA, STEP_ERA
from control_plane.actors.trial_state import TrialState
from control_plane.config import Era, ExperimentConfig
from control_plane.simulation.machines import Period

POOL = "simulated"


def submission_of(config: ExperimentConfig) -> ExperimentSubmitted:
    """The configuration's experiment, submitted to a pool of its own."""
    rules = STEP_ERA if config.era is Era.STEP else LENGTH_ERA
    patience_ms = rules.preempt_ms
    if config.preemption_timeout is not None:
        patience_ms = config.preemption_timeout * 1_000
    settings = TrialSettings(
        pool=POOL,
        slots=config.job.slots_per_trial,
        max_restarts=config.max_restarts,
        smaller_is_better=config.searcher.smaller_is_better,
        lengths=lengths_of(config),
        submitted_ms=0,
        max_slots=config.job.max_slots,
        terminate_ms=rules.terminate_ms,
        preempt_ms=patience_ms,
    )
    return ExperimentSubmitted(
        experiment_id=1,
        owner="",
        name=config.name or config.description or "",
        config="",
        code_sha256="",
        plan=config.search_plan(),
        settings=settings,
        metric=config.searcher.metric,
        searcher=config.searcher.name,
        paused=False,
        rules=rules,
    )


def lengths_of(config: ExperimentConfig) -> Lengths:
    """How the configuration counts."""
    scale = config.scale
    return Lengths(config.unit, scale.batches_per_step, scale.records_per_epoch)


def period_of(config: ExperimentConfig) -> Period:
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
