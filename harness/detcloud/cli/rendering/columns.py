"""Columns of experiments, trials and checkpoints that several commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.cli.rendering.conditions import CONDITION, condition_text
from detcloud.cli.rendering.quantities import (
    bytes_text,
    dollars_text,
    duration_text,
    hours_text,
    percent_text,
)
from detcloud.cli.rendering.replacements import replacements_text
from detcloud.cli.rendering.table import (
    Column,
    Item,
    cell_text,
    field_column,
    time_column,
    time_text,
)
from detcloud.shared.dotted_paths import join_names, nested_leaves
from detcloud.shared.plurals import count_text


def _progress_text(experiment: Item) -> str | None:
    """Return the progress of an experiment in whole percent: `25%` for 0.25. Return None if the
    progress is unknown.

    A completed experiment without a recorded progress has 100%.
    """
    progress = experiment.get("progress")
    if progress is None and experiment.get("state") == "COMPLETED":
        # Completed experiments of the step era have no recorded progress.
        progress = 1.0
    return None if progress is None else f"{100 * progress:.0f}%"


def _use_text(item: Item) -> str | None:
    """Return the mean use of the measured time, for example `41.5 % of 12.0 slot hours, memory
    60.1 %`. Return None without measured time.
    """
    use = item.get("use")
    if not use:
        return None
    return (
        f"{percent_text(use['percent'])} of {hours_text(use['measured_hours'])} slot hours, "
        f"memory {percent_text(use['memory_percent'])}"
    )


def _trial_counts_text(experiment: Item) -> str:
    """Return the numbers of trials by kind, for example `8 requested, 1 errored`, in the order of
    the experiment's field `trials`.

    Numbers of 0 are included. Return "" if the field is missing or empty.
    """
    counts = experiment.get("trials") or {}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _retention_text(experiment: Item) -> str:
    """Return the numbers of kept checkpoints, for example `save_experiment_best=0 save_trial_best=1
    save_trial_latest=1`.
    """
    settings = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    return " ".join(f"{name}={experiment.get(name)}" for name in settings)


def _experiment_cost_text(experiment: Item) -> str | None:
    """Return `$2.50 of $30.00`, or the cost alone without a limit.

    An unknown cost is shown as N/A before a limit. Return None if both are unknown. A missing field
    `cost` counts as $0.00, and a missing `max_cost` as no limit.
    """
    cost, limit = dollars_text(experiment.get("cost", 0.0)), experiment.get("max_cost")
    return cost if limit is None else f"{cell_text(cost)} of {dollars_text(limit)}"


def _notices_text(experiment: Item) -> str | None:
    """Return the outcomes of termination notices, for example `2 saved, 1 kept`. Outcomes with a
    count of 0 are omitted. Return None without notices.
    """
    counts = experiment.get("notices") or {}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count) or None


def _activity_text(experiment: Item) -> str:
    """Return a sentence on an experiment's activity, with the reason of a wait and the expected
    times. Unknown parts are omitted.

    Args:
        experiment: the fields of an experiment, with the activity under `activity`.
    """
    activity = experiment["activity"]
    reason = str(activity["reason"]).removeprefix("waits: ")
    texts = [activity["sentence"], reason]
    if (start_ms := activity["expected_start_ms"]) is not None:
        texts.append(f"next start expected at {time_text(start_ms)}")
    if (end_ms := activity["expected_end_ms"]) is not None:
        texts.append(f"end expected at about {time_text(end_ms)}")
    return "; ".join(filter(None, texts))


def _preferred_pools_text(experiment: Item) -> str | None:
    """Return a job's preferred pools, the start of the wait, and the last move with the reason,
    separated by semicolons.

    Missing parts are omitted. Return None for a job without all of these.
    """
    texts = [", ".join(experiment.get("preferred_pools") or [])]
    if (since_ms := experiment.get("waits_since_ms")) is not None:
        texts.append(f"waits since {time_text(since_ms)}")
    if (moved_ms := experiment.get("pool_moved_ms")) is not None:
        texts.append(f"moved at {time_text(moved_ms)}: {experiment.get('pool_move_reason')}")
    return "; ".join(filter(None, texts)) or None


def _failed_trials(experiment: Item) -> int | None:
    """Return the number of failed trials. Return None if the number is unknown."""
    return (experiment.get("trials") or {}).get("errored")


EXPERIMENT_COLUMNS = (
    field_column("ID", "id"),
    field_column("User", "user", drop_rank=3),
    field_column("Name", "name"),
    CONDITION,
    Column("Progress", _progress_text),
    time_column("Start time", "created_ms", drop_rank=2),
    time_column("End time", "ended_ms", drop_rank=5),
    field_column("Resource pool", "resource_pool", drop_rank=6),
    field_column("Searcher", "searcher", drop_rank=4),
    field_column("Metric", "metric", drop_rank=1),
    field_column("Best", "best_metric"),
    Column("Failed", _failed_trials, colour=lambda text: "" if text == "0" else "red"),
    field_column("Signal", "signal", drop_rank=7),
)


def value_column(text: str) -> Column:
    """Return the column of a metric or a hyperparameter of a list, such as `metric:loss`.

    The title is the name without the kind. A range is printed as `0.001 to 0.1`, and choices are
    separated by commas.
    """

    def value(experiment: Item) -> object:
        return (experiment.get("values") or {}).get(text)

    return Column(text.partition(":")[2], lambda item: _varied_text(value(item)), exact=value)


def _varied_text(value: object) -> object:
    """Return the text of a range or of choices. Return other values unchanged."""
    match value:
        case {"min": minimum, "max": maximum}:
            return f"{cell_text(minimum)} to {cell_text(maximum)}"
        case {"any": [*choices]}:
            return ", ".join(map(cell_text, choices))
    return value


# The column that `describe` prints only for an active experiment.
EXPERIMENT_ACTIVITY = Column("Now", _activity_text)
# The column that `describe` prints only for a running experiment with a `max_duration`.
EXPERIMENT_END = time_column("Ends", "ends_ms")
# The column that `describe` prints only for an experiment of a schedule.
EXPERIMENT_SCHEDULE = field_column("Schedule", "schedule_id")
PROJECT_COLUMNS = (
    field_column("Workspace", "workspace"),
    field_column("Project", "project"),
)
EXPERIMENT_DETAILS = (
    *EXPERIMENT_COLUMNS,
    *PROJECT_COLUMNS,
    field_column("Best trial", "best_trial_id"),
    Column("Trials", _trial_counts_text),
    field_column("Description", "description"),
    Column("Labels", lambda item: ", ".join(item.get("labels") or [])),
    Column("Metadata", lambda item: item.get("metadata") or None),
    field_column("Archived", "archived"),
    Column("Preferred pools", _preferred_pools_text),
    field_column("Seed", "seed"),
    Column("Cost", _experiment_cost_text),
    Column("Notices", _notices_text),
    field_column("Max slots", "max_slots"),
    field_column("Priority", "priority"),
    field_column("Weight", "weight"),
    Column("Kept", _retention_text),
    field_column("Job", "job_id"),
    field_column("Message", "message"),
)


def trial_display_state(trial: Item) -> str:
    """Return the state of a trial for CSV; for an active trial, the state of the allocation, for
    example RUNNING.

    An active trial without an allocation is QUEUED.

    Args:
        trial: the fields of a trial; without `state`, KeyError is raised.
    """
    if trial["state"] != "ACTIVE":
        return str(trial["state"])
    allocation = trial.get("allocation")
    return str(allocation["state"]) if allocation else "QUEUED"


def hparams_text(trial: Item) -> str:
    """Return hyperparameters as `lr=0.01 layers=3`, or "" without hyperparameters.

    Nested names are joined by dots. Floats have four significant digits. Control characters are
    kept.
    """
    leaves = nested_leaves(trial.get("hparams") or {})
    return " ".join(f"{join_names(names)}={_hparam_text(value)}" for names, value in leaves)


def _hparam_text(value: object) -> str:
    """Return a float with four significant digits, and other values as Python prints them."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _allocation_text(trial: Item) -> str | None:
    """Return the id, the state and the places of an allocation. An example is `12.3 RUNNING on
    agent local, slots 0, 1`. Return None without an allocation.

    A gang, a trial on several agents, lists all agents. An allocation without places ends after the
    state.
    """
    allocation = trial.get("allocation")
    if not allocation:
        return None
    places = " and ".join(
        f"agent {place['agent_id']}, slots {', '.join(map(str, place['slots']))}"
        for place in allocation.get("places") or []
    )
    return f"{allocation['id']} {allocation['state']}{places and f' on {places}'}"


def _losses_text(trial: Item) -> str:
    """Return the number of lost runs, and a line with time, agent and cause for each recent loss.
    An unknown agent is omitted.

    Args:
        trial: the fields of a trial, with `losses` and `recent_losses`.
    """
    lines = [f"{trial['losses']} (not counted as failures):"]
    for loss in trial["recent_losses"]:
        place = f" agent {loss['agent_id']}" if loss["agent_id"] else ""
        lines.append(f"{time_text(loss['time_ms'])}{place}: {loss['cause']}")
    return "\n".join(lines)


def _counted_failures_text(trial: Item) -> str:
    """Return the failures that count against `max_restarts`, and the restart window.

    Args:
        trial: the fields of a trial, with `counted_restarts` and a `restart_window_ms`.
    """
    window = duration_text(trial["restart_window_ms"] / 1000)
    return f"{trial['counted_restarts']} within {window}"


def holders_text(holders: Mapping[str, Any]) -> str:
    """Return the users, model versions and experiments that keep a checkpoint.

    For example `ada, model version m/1, experiment 3`. Return "" if no holder keeps the checkpoint.

    Args:
        holders: lists under the keys `users`, `versions` and `experiments`. A missing key counts as
            empty.
    """
    texts = [
        *holders.get("users", ()),
        *(f"model version {name}" for name in holders.get("versions", ())),
        *(f"experiment {experiment_id}" for experiment_id in holders.get("experiments", ())),
    ]
    return ", ".join(texts)


def _damages_text(trial: Item) -> str:
    """Return a line for each recently damaged checkpoint: time, UUID, cause and replacement. Return
    "" without damaged checkpoints.
    """
    return "\n".join(_damage_text(damage) for damage in trial["recent_damages"])


def _damage_text(damage: Item) -> str:
    """Return a line on a damaged checkpoint: time, UUID, batch and cause, and the checkpoint used
    instead with the lost batches.
    """
    lost = damage["steps_completed"] - damage["instead_steps"]
    place = f"{damage['instead']} at batch {damage['instead_steps']}, batches lost: {lost}"
    instead = f"resumed from {place}" if damage["instead"] else "this trial had no other checkpoint"
    return (
        f"{time_text(damage['time_ms'])} {damage['uuid']} at batch {damage['steps_completed']}:"
        f" {damage['cause']}; {instead}"
    )


def _log_matches_text(trial: Item) -> str:
    """Return a line for each recent line of the log that matched a log policy: time, agent, policy,
    line and actions.
    """
    return "\n".join(
        f"{time_text(match['time_ms'])} run {match['epoch']} on {match['agent_id'] or 'an agent'}, "
        f"{match['policy']}: {match['line']}"
        + (f" ({', '.join(match['actions'])})" if match["actions"] else "")
        for match in trial["log_matches"]
    )


def _excluded_agents_text(trial: Item) -> str:
    return ", ".join(trial["excluded_agents"])


def target_text(trial: Item) -> Any:
    """Return the length that the trial must train: a number of batches, or a text like `3 epochs`.

    A length in epochs has precedence. Return None if the length is unknown.
    """
    epochs = trial.get("target_epochs")
    return trial.get("target_steps") if epochs is None else count_text(epochs, "epoch")


TRIAL_COLUMNS = (
    field_column("ID", "id"),
    field_column("Number", "number"),
    Column("State", condition_text, exact=trial_display_state),
    field_column("Steps", "steps_completed"),
    Column("Target", target_text),
    field_column("Metric", "metric"),
    field_column("Best", "best_metric"),
    Column("Failures", lambda trial: trial.get("restarts"), exact_title="Restarts"),
    Column("Hyperparameters", hparams_text, exact=lambda trial: trial.get("hparams")),
)
TRIAL_DETAILS = (
    field_column("ID", "id"),
    field_column("Experiment", "experiment_id"),
    *TRIAL_COLUMNS[1:],
    field_column("Seed", "seed"),
    field_column("Latest checkpoint", "latest_checkpoint"),
    Column("Allocation", _allocation_text),
    Column("Cost", lambda trial: dollars_text(trial.get("cost"))),
    time_column("Start time", "created_ms"),
    time_column("End time", "ended_ms"),
    field_column("Message", "message"),
)
# Columns that `trial describe` prints only for trials to which they apply.
TRIAL_WARM_START = field_column("Warm start", "warm_start")
TRIAL_LOSSES = Column("Losses", _losses_text)
TRIAL_COUNTED_FAILURES = Column("Counted failures", _counted_failures_text)
TRIAL_END = time_column("Ends", "ends_ms")
USE = Column("Mean use", _use_text)
TRIAL_LOW_USE = Column("Low use", lambda trial: trial["allocation"]["low_use"]["text"])
TRIAL_HANG = Column("Hang", lambda trial: trial["allocation"]["hang"]["text"])
TRIAL_REPLACEMENTS = Column("Replacements", replacements_text)
TRIAL_DAMAGES = Column("Damaged checkpoints", _damages_text)
TRIAL_SIGNAL = field_column("Signal", "signal")
TRIAL_LOG_MATCHES = Column("Matched log lines", _log_matches_text)
TRIAL_RETRIES_CANCELED = field_column("No retries", "retries_canceled")
TRIAL_EXCLUDED_AGENTS = Column("Excluded agents", _excluded_agents_text)
TRIAL_DAMAGED_METADATA = field_column("Damaged metadata", "metadata_damage")
METRIC_SUMMARY_COLUMNS = (
    field_column("Group", "group"),
    field_column("Name", "name"),
    field_column("Count", "count"),
    field_column("Last steps", "last_steps", drop_rank=1),
    field_column("Last", "last"),
    field_column("Minimum", "minimum"),
    field_column("Maximum", "maximum"),
    field_column("Mean", "mean", drop_rank=2),
)

CHECKPOINT_COLUMNS = (
    field_column("UUID", "uuid"),
    field_column("Trial", "trial_id"),
    field_column("Steps", "steps_completed"),
    field_column("State", "state", drop_rank=2),
    field_column("Metric", "metric"),
    Column(
        "Size",
        lambda item: bytes_text(item.get("size_bytes") or 0),
        exact=lambda item: item.get("size_bytes") or 0,
    ),
    field_column("Files", "files", drop_rank=1),
    time_column("Created", "created_ms", drop_rank=3),
    Column("Pinned by", lambda item: holders_text(item.get("pinned_by") or {})),
)
CHECKPOINT_DETAILS = (
    *CHECKPOINT_COLUMNS,
    field_column("Experiment", "experiment_id"),
    field_column("Uploaded by", "uploaded_by"),
    field_column("Metadata", "metadata"),
)
# Columns that `checkpoint describe` prints only for checkpoints to which they apply.
CHECKPOINT_LOSSES = (
    field_column("Damage", "damage"),
    field_column("Damaged metadata", "metadata_damage"),
    Column("Deleted files", lambda item: ", ".join(item.get("deleted_patterns") or ())),
)
