"""The conversion of a configuration to the settings of an experiment, a job and trials."""

from __future__ import annotations

from control_plane.actors.era_rules import LENGTH_ERA, STEP_ERA, LifecycleRules
from control_plane.actors.job_row import JobRow
from control_plane.actors.pool_moves import PoolPreferences
from control_plane.actors.records import JobKind, SnapshotSettings, TrialSettings
from control_plane.config.deadline import deadline_ms
from control_plane.config.eras import Era
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.run_limits import NO_LIMITS, RunLimits

# A hundred years, which is in practice no limit.
PREEMPTION_SECONDS_MAX = 3_153_600_000


def lifecycle_of(config: ExperimentConfig) -> LifecycleRules:
    """Return the lifecycle rules of the configuration's era."""
    return STEP_ERA if config.era is Era.STEP else LENGTH_ERA


def job_of(
    config: ExperimentConfig, submitted_ms: int, kind: JobKind = JobKind.EXPERIMENT
) -> JobRow:
    """Return the job row of a new experiment for the scheduler of the pool.

    The row has no deadline and no patience; the experiment adds both later. Only jobs of the kind
    EXPERIMENT are preemptible.

    Args:
        submitted_ms: the time of the submission, in epoch ms.
    """
    resources = config.resources
    return JobRow(
        submitted_ms=submitted_ms,
        weight=resources.weight,
        priority=resources.priority,
        max_slots=resources.max_slots,
        label=resources.agent_label,
        single_agent=bool(resources.is_single_node),
        slot_sharers=config.job.slot_sharers,
        preemptible=kind is JobKind.EXPERIMENT,
        slot_type=resources.slot_type,
        slot_memory=resources.slot_memory or 0,
    )


def pool_preferences(config: ExperimentConfig) -> PoolPreferences | None:
    """Return the preferred pools of a configuration's job. None if it names at most one pool."""
    pools = config.resources.pools
    return PoolPreferences(pools, config.resources.pool_patience) if len(pools) > 1 else None


def trial_settings(
    config: ExperimentConfig,
    pool: str,
    submitted_ms: int,
    kind: JobKind = JobKind.EXPERIMENT,
    limits: RunLimits = NO_LIMITS,
    snapshots: SnapshotSettings | None = None,
) -> TrialSettings:
    """Return the settings that all trials of an experiment share.

    Without a preemption timeout, the limit of the era applies. A timeout above
    PREEMPTION_SECONDS_MAX is reduced to this maximum.

    Args:
        pool: the name of the experiment's pool.
        submitted_ms: the time of the submission, in epoch ms. A relative deadline starts here.
        kind: the kind of job. Trials of kinds other than EXPERIMENT run only once.
        limits: the limits of a command, notebook or shell. The program of a notebook has its own
            idle settings, so that the agent does not watch an idle notebook. Ignored for
            experiments, whose limits are in the configuration.
        snapshots: how the files of a notebook's or shell's folder are kept. None: they are lost.

    Raises:
        ValueError: the deadline is not valid, which a checked configuration rules out.
    """
    rules = lifecycle_of(config)
    preempt_ms = rules.preempt_ms
    if config.preemption_timeout is not None:
        preempt_ms = min(config.preemption_timeout, PREEMPTION_SECONDS_MAX) * 1_000
    deadline = config.resources.deadline
    if kind is JobKind.EXPERIMENT:
        limits = RunLimits(idle_timeout_ms=config.idle_timeout)
    return TrialSettings(
        pool=pool,
        slots=config.job.slots_per_trial,
        slot_sharers=config.job.slot_sharers,
        max_restarts=config.max_restarts,
        smaller_is_better=config.searcher.smaller_is_better,
        lengths=config.scale.lengths(config.unit),
        submitted_ms=submitted_ms,
        terminate_ms=rules.terminate_ms,
        preempt_ms=preempt_ms,
        deadline_ms=None if deadline is None else deadline_ms(deadline, submitted_ms),
        max_cost=config.resources.max_cost,
        runs_once=kind is not JobKind.EXPERIMENT,
        discards_lost_metrics=True,
        max_duration_ms=limits.max_duration_ms,
        experiment_duration_ms=config.max_duration,
        idle_timeout_ms=None if kind is JobKind.NOTEBOOK else limits.idle_timeout_ms,
        snapshots=snapshots,
        trial_duration_ms=config.max_trial_duration if kind is JobKind.EXPERIMENT else None,
        restart_window_ms=config.restart_window,
        low_use=config.low_use.action if kind is JobKind.EXPERIMENT else "ignore",
        restarts_hangs=kind is JobKind.EXPERIMENT and config.hang_detection.action == "restart",
    )
