"""Tables of complete experiments: the experiments, their trials, checkpoints and metrics."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcloud.cli.rendering.columns import CHECKPOINT_DETAILS, EXPERIMENT_DETAILS, TRIAL_DETAILS
from detcloud.cli.rendering.output import print_items
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.table import Column, Item, field_column, render_csv, time_column
from detcloud.client import Experiment, Trial
from detcloud.shared.plurals import count_text

METRIC_COLUMNS = (
    field_column("Experiment", "experiment_id"),
    field_column("Trial", "trial_id"),
    field_column("Group", "group"),
    field_column("Steps", "steps_completed"),
    field_column("Name", "name"),
    field_column("Value", "value"),
    time_column("Time", "time_ms"),
)


def write_tables(experiments: list[Experiment], folder: Path, *, with_metrics: bool) -> None:
    """Write experiments.csv, trials.csv and checkpoints.csv in UTF-8 into `folder`, creating the
    folder if needed. Nothing is printed.

    Existing files of these names are replaced. Trials, checkpoints and metrics are fetched from the
    cluster before any file is written.

    Args:
        with_metrics: whether to also write metrics.csv.

    Raises:
        DetcloudError: the cluster does not answer or refuses a request.
        OSError: a file cannot be written. Earlier files remain.
    """
    trials = [trial.data for experiment in experiments for trial in experiment.trials()]
    checkpoints = [
        checkpoint.data for experiment in experiments for checkpoint in experiment.checkpoints()
    ]
    tables: dict[str, tuple[Sequence[Column], list[Item]]] = {
        "experiments": (EXPERIMENT_DETAILS, [experiment.data for experiment in experiments]),
        "trials": (TRIAL_DETAILS, trials),
        "checkpoints": (CHECKPOINT_DETAILS, checkpoints),
    }
    if with_metrics:
        tables["metrics"] = (METRIC_COLUMNS, metric_items(experiments))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (columns, items) in tables.items():
        (folder / f"{name}.csv").write_text(render_csv(columns, items), encoding="utf-8")


def print_metrics(experiments: list[Experiment], arguments: Namespace) -> None:
    """Print an empty line and the numbers that the experiments' trials reported, a row for each
    number.

    The rows are fetched from the cluster and printed as a table, CSV, JSON or YAML. Without
    reports, only the titles or `[]` follow.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    print()
    sys.stdout.flush()
    print_items(METRIC_COLUMNS, metric_items(experiments), arguments)


def metric_items(experiments: list[Experiment]) -> list[dict[str, Any]]:
    """Return an item for each number that the experiments' trials reported, trial by trial. The
    list is empty without reports.

    The metrics are fetched from the cluster with a progress line on stderr.

    Raises:
        DetcloudError: the cluster does not answer or refuses a request.
    """
    trials = [(experiment.id, trial) for experiment in experiments for trial in experiment.trials()]
    items: list[dict[str, Any]] = []
    with show_progress("metrics", lambda n: count_text(n, "trial")) as progress:
        for done, (experiment_id, trial) in enumerate(trials):
            progress.update(done, len(trials))
            items += _trial_metric_items(experiment_id, trial)
    return items


def _trial_metric_items(experiment_id: int, trial: Trial) -> list[dict[str, Any]]:
    """Return an item for each number that a trial reported. The metrics are fetched from the
    cluster.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    return [
        {
            "experiment_id": experiment_id,
            "trial_id": trial.id,
            "group": report["group"],
            "steps_completed": report["steps_completed"],
            "name": name,
            "value": value,
            "time_ms": report["time_ms"],
        }
        for report in trial.metrics()
        for name, value in report["metrics"].items()
    ]
