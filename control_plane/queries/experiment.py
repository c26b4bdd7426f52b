"""Queries of experiments, and previews of experiments that a submission would create."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.cost import MICROS_PER_DOLLAR
from control_plane.actors.experiment.settings import remarks_revision
from control_plane.actors.experiment.state import (
    Definition,
    ExperimentState,
    Settings,
    effective_settings,
)
from control_plane.actors.experiment.trial_summaries import (
    SUMMARIES_PER_PART,
    Summaries,
    TrialSummary,
)
from control_plane.actors.messages.experiment import ExperimentSubmitted
from control_plane.actors.pool_moves import PoolMoves, preferred_pools
from control_plane.actors.records import JobKind, Status, TrialSettings
from control_plane.agents.spec import parse_stored_config
from control_plane.config.command import command_values
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.run_limits import RunLimits, limit_values
from control_plane.config.snapshots import snapshot_values
from control_plane.config.stated_fields import submitted_values
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import PARTS
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.conditions import ExperimentCondition
from control_plane.queries.experiment_columns import Column, ListedValue, values_of
from control_plane.queries.job_counts import experiment_conditions
from control_plane.queries.search_method import MethodView, describe_method
from control_plane.queries.single_run import SingleRun, read_single_runs
from control_plane.queries.use_answer import UseAnswer, use_answer
from control_plane.searchers.registry import can_continue
from control_plane.services import Services
from control_plane.state.table import Key, Row


class TrialCounts(Answer):
    """The numbers of an experiment's trials.

    `requested` counts all trials created so far, `running` the trials that have not ended.
    """

    requested: int = 0
    running: int = 0
    completed: int = 0
    errored: int = 0


class NoticeCounts(Answer):
    """The numbers of interruption notices to an experiment's trials, by the trial's reaction.

    `saved`: the trial saved a checkpoint. `finished`: the trial finished a checkpoint in progress.
    `kept`: the trial stopped and kept its last checkpoint. `cut`: the machine was taken away before
    the trial stopped.
    """

    saved: int = 0
    finished: int = 0
    kept: int = 0
    cut: int = 0


class Experiment(Answer):
    """An experiment; docs/api.md describes the fields.

    `id` is null in the preview of an experiment that does not exist yet.
    """

    id: int | None
    kind: JobKind
    name: str
    description: str
    state: Status
    condition: ExperimentCondition
    user: str
    workspace: str
    project: str
    resource_pool: str
    preferred_pools: list[str] = []
    waits_since_ms: int | None = None
    pool_moved_ms: int | None = None
    pool_move_reason: str = ""
    searcher: str
    metric: str
    smaller_is_better: bool
    continuable: bool = False
    progress: float | None = 0.0
    best_metric: float | None = None
    best_trial_id: int | None = None
    trials: TrialCounts = TrialCounts()
    notices: NoticeCounts = NoticeCounts()
    created_ms: int
    ends_ms: int | None = None
    ended_ms: int | None = None
    message: str = ""
    labels: list[str]
    metadata: dict[str, Any] = {}
    revision: str = ""
    job_id: str
    archived: bool = False
    seed: int
    max_slots: int | None
    weight: float
    priority: int | None
    max_cost: float | None
    cost: float = 0.0
    use: UseAnswer | None = None
    warnings: list[str] = []
    save_experiment_best: int
    save_trial_best: int
    save_trial_latest: int
    code_sha256: str
    forked_from: int | None = None
    restored_from: int | None = None
    schedule_id: int | None = None
    search_method: MethodView | None = None
    run: SingleRun | None = None
    values: dict[str, ListedValue] = {}
    signal: str = ""
    logs_deleted_ms: int | None = None
    metrics_deleted_ms: int | None = None


class ExperimentWithConfig(Experiment):
    """An experiment with the configuration.

    `config` contains every default, and `submitted_config` only the values that the user or the
    template set; secrets are masked in both. For experiments of older releases, and for very large
    configurations, `submitted_config` has the values that differ from the defaults.
    """

    config: dict[str, Any]
    submitted_config: dict[str, Any] = {}


def get_experiment(services: Services, experiment_id: int) -> tuple[ExperimentState, Definition]:
    """Load the experiment's state and definition.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
    """
    loaded = services.experiments.read_experiment(experiment_id)
    if loaded is None:
        head = services.engine.read_state(addresses.experiment(experiment_id))
        if head is None:
            raise RequestError(Code.NOT_FOUND, f"there is no experiment {experiment_id}")
        raise RequestError(Code.NOT_FOUND, f"experiment {experiment_id} was deleted")
    return loaded


def describe_experiment(
    services: Services, experiment_id: int, warnings: Sequence[str] = ()
) -> Experiment:
    """Return an experiment, with the given `warnings`.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
    """
    state, definition = get_experiment(services, experiment_id)
    fields = _fields_with_run(services, state, definition)
    return Experiment(**fields, warnings=list(warnings))


def describe_experiments(
    services: Services, experiment_ids: Sequence[int], columns: Sequence[Column] = ()
) -> list[Experiment]:
    """Return experiments in the order of the ids. Skip missing and deleted experiments.

    The rows of all experiments are read together, in a few calls. The field `values` has the values
    of the `columns`, which cost no further reads.
    """
    keys = [Key(addresses.experiment(number), f"{PARTS}settings") for number in experiment_ids]
    loaded, rows = services.experiments.read_experiments(experiment_ids, keys)
    existing = [(pair, row) for pair, row in zip(loaded, rows, strict=True) if pair is not None]
    runs = read_single_runs(services, [pair for pair, _ in existing])
    conditions = experiment_conditions(services, (state for (state, _), _ in existing))
    answers = []
    for (pair, row), run in zip(existing, runs, strict=True):
        settings = effective_settings(pair[1], None if row is None else _settings_of_row(row))
        condition = conditions[pair[0].experiment_id]
        fields, values = _fields(services, *pair, settings), values_of(*pair, columns)
        answers.append(Experiment(**fields, condition=condition, run=run, values=values))
    return answers


def describe_experiment_with_config(services: Services, experiment_id: int) -> ExperimentWithConfig:
    """Return an experiment with the configuration, secrets masked.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
        ValueError, KeyError: the stored configuration is not valid for this release.
    """
    state, definition = get_experiment(services, experiment_id)
    config = parse_stored_config(definition)
    return ExperimentWithConfig(
        **_fields_with_run(services, state, definition),
        config=shown_config(state.kind, config, definition.settings),
        submitted_config=submitted_config(
            state.kind, config, definition.settings, definition.stated_fields
        ),
    )


def shown_config(
    kind: JobKind, config: ExperimentConfig, settings: TrialSettings
) -> dict[str, Any]:
    """Return the configuration's values as JSON, with secrets masked.

    For a command, notebook or shell, return only the values that these kinds of job use, the limits
    of the run, and the snapshots. The idle timeout of a notebook is an option of the program.
    """
    if kind is JobKind.EXPERIMENT:
        return config.masked_values()
    limits = RunLimits(settings.idle_timeout_ms, settings.max_duration_ms)
    snapshots = snapshot_values(kind, settings.snapshots)
    return {**command_values(config), **limit_values(limits), **snapshots}


def submitted_config(
    kind: JobKind,
    config: ExperimentConfig,
    settings: TrialSettings,
    stated_fields: Mapping[str, object],
) -> dict[str, Any]:
    """Return the submitted values of the configuration as JSON, with secrets masked.

    For a command, notebook or shell, return the result of `shown_config`.
    """
    if kind is not JobKind.EXPERIMENT:
        return shown_config(kind, config, settings)
    return submitted_values(config, stated_fields)


def experiment_preview(
    message: ExperimentSubmitted, config: ExperimentConfig, warnings: Sequence[str]
) -> ExperimentWithConfig:
    """Return the experiment that the message would create, without creating the experiment.

    The id is None. Counts, cost, progress and end have their defaults.

    Args:
        message: the message that would create the experiment.
        config: the experiment's configuration, which is shown with masked secrets.
        warnings: the warnings of the answer.
    """
    return ExperimentWithConfig(
        id=None,
        kind=message.kind,
        name=message.name,
        description=message.description,
        state=Status.PAUSED if message.paused else Status.ACTIVE,
        condition="paused" if message.paused else "queued",
        user=message.owner,
        workspace=message.workspace,
        project=message.project,
        resource_pool=message.settings.pool,
        preferred_pools=[] if message.pools is None else list(message.pools.names),
        searcher=message.searcher,
        metric=message.metric,
        smaller_is_better=message.settings.smaller_is_better,
        created_ms=message.settings.submitted_ms,
        labels=list(message.labels),
        job_id=message.job_id,
        seed=message.plan.seed,
        max_slots=message.job.max_slots,
        weight=message.job.weight,
        priority=message.job.priority,
        max_cost=message.settings.max_cost,
        warnings=list(warnings),
        **asdict(message.retention),
        code_sha256=message.code_sha256,
        forked_from=message.forked_from,
        restored_from=message.restored_from,
        schedule_id=message.schedule_id,
        config=shown_config(message.kind, config, message.settings),
        submitted_config=submitted_config(
            message.kind, config, message.settings, message.stated_fields
        ),
    )


def trial_ids(services: Services, state: ExperimentState, first: int, end: int) -> Iterator[int]:
    """Yield the ids of the experiment's trials with `first` <= number < `end`, in order.

    Ids are unique in the cluster. Numbers are as in `trial_summaries`.
    """
    for _, summary in trial_summaries(services, state, first, end):
        yield summary.trial_id


def trial_summaries(
    services: Services, state: ExperimentState, first: int, end: int
) -> Iterator[tuple[int, TrialSummary]]:
    """Yield the number and summary of the experiment's trials with `first` <= number < `end`.

    Numbers count the experiment's trials from 0. Numbers of trials that do not exist are skipped.
    Parts of the experiment are read during the iteration.
    """
    address = addresses.experiment(state.experiment_id)
    for index in range(first // SUMMARIES_PER_PART, -(-end // SUMMARIES_PER_PART)):
        part = services.engine.read_part(address, f"trials/{index}")
        trials = part.trials if isinstance(part, Summaries) else ()
        for number, summary in enumerate(trials, index * SUMMARIES_PER_PART):
            if first <= number < end:
                yield number, summary


def current_settings(
    services: Services, state: ExperimentState, definition: Definition
) -> Settings:
    """Load the experiment's settings, with the changes made since the submission. Reads one row."""
    changed = services.engine.read_part(addresses.experiment(state.experiment_id), "settings")
    assert changed is None or isinstance(changed, Settings)
    return effective_settings(definition, changed)


def _settings_of_row(row: Row) -> Settings:
    """Decode the row of an experiment's changed settings."""
    name = row.key.sort.removeprefix(PARTS)
    settings = actor_type_at(row.key.partition).decode_part(name, row.body)
    assert isinstance(settings, Settings)
    return settings


def _fields(
    services: Services, state: ExperimentState, definition: Definition, current: Settings
) -> dict[str, Any]:
    """Return the fields of the `Experiment` answer, except `condition`, `run` and `warnings`.

    For a custom search, the last call of the search method is read.
    """
    counts = TrialCounts(
        requested=state.trials,
        running=state.trials_open,
        completed=state.trials_completed,
        errored=state.trials_errored,
    )
    return {
        "id": state.experiment_id,
        "kind": state.kind,
        "name": state.name,
        "description": current.description,
        "state": state.status,
        "user": state.owner,
        "workspace": current.workspace,
        "project": current.project,
        "resource_pool": state.pool,
        **pool_move_fields(state, definition),
        "searcher": state.searcher,
        "metric": state.metric,
        "smaller_is_better": state.smaller_is_better,
        "continuable": state.kind is JobKind.EXPERIMENT and can_continue(state.searcher),
        "progress": state.progress,
        "best_metric": state.best_metric,
        "best_trial_id": state.best_trial,
        "trials": counts,
        "notices": NoticeCounts(**state.notices),
        "created_ms": state.created_ms,
        "ends_ms": state.ends_ms,
        "ended_ms": state.ended_ms,
        "message": state.message,
        "signal": state.signal,
        "logs_deleted_ms": state.expiry.logs_deleted_ms,
        "metrics_deleted_ms": state.expiry.metrics_deleted_ms,
        "labels": list(current.labels),
        "metadata": dict(current.metadata),
        "revision": remarks_revision(state, current),
        "job_id": definition.job_id,
        "archived": state.archived,
        "seed": definition.plan.seed,
        "max_slots": current.max_slots,
        "weight": current.weight,
        "priority": current.priority,
        "max_cost": _dollars(current.max_cost_micros),
        "cost": state.bill.spent_micros(services.now_ms()) / MICROS_PER_DOLLAR,
        "use": use_answer(state.bill.use),
        **asdict(current.retention),
        "code_sha256": definition.code_sha256,
        "forked_from": definition.forked_from,
        "restored_from": definition.restored_from,
        "schedule_id": definition.schedule_id,
        "search_method": describe_method(services, state),
    }


def pool_move_fields(state: ExperimentState, definition: Definition) -> dict[str, Any]:
    """Return the answer fields for a job's preferred pools and last move between pools.

    The fields are `preferred_pools`, `waits_since_ms`, `pool_moved_ms` and `pool_move_reason`. The
    list of pools is empty for a job that stays in its pool. Without a move, the times are None and
    the reason is "". Nothing is read.
    """
    moves = state.pool_moves or PoolMoves()
    return {
        "preferred_pools": list(preferred_pools(definition.pools, state.pool_moves)),
        "waits_since_ms": moves.waits_since_ms,
        "pool_moved_ms": moves.moved_ms,
        "pool_move_reason": moves.reason,
    }


def _fields_with_run(
    services: Services, state: ExperimentState, definition: Definition
) -> dict[str, Any]:
    """Return the fields of the `Experiment` answer, except `warnings`. Reads the settings, the run
    and the job.
    """
    [run] = read_single_runs(services, [(state, definition)])
    current = current_settings(services, state, definition)
    condition = experiment_conditions(services, [state])[state.experiment_id]
    fields = _fields(services, state, definition, current)
    return {**fields, "condition": condition, "run": run}


def _dollars(micros: int | None) -> float | None:
    """Convert an optional amount of micro-dollars to dollars."""
    return None if micros is None else micros / MICROS_PER_DOLLAR
