"""Experiments as CSV tables: themselves, their trials, checkpoints and metrics."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcloud.cli.checkpoint import DETAILS as CHECKPOINT_COLUMNS
from detcloud.cli.experiment import DETAILS as EXPERIMENT_COLUMNS
from detcloud.cli.output import print_items
from detcloud.cli.progress import progress
from detcloud.cli.table import Column, Item, csv_text, field, time_column
from detcloud.cli.terminal import counted
from detcloud.cli.trial import DETAILS as TRIAL_COLUMNS
from detcloud.client import Experiment, Trial

METRIC_COLUMNS = (
    field("Experiment", "experiment_id"),
    field("Trial", "trial_id"),
    field("Group", "group"),
    field("Steps", "steps_completed"),
    field("Name", "name"),
    field("Value", "value"),
    time_column("Time", "time_ms"),
)


def write_tables(experiments: list[Experiment], folder: Path, *, with_metrics: bool) -> None:
    """Writes a file for each table into `folder`, which need not exist."""
    trials = [trial.data for experiment in experiments for trial in experiment.trials()]
    checkpoints = [found.data for experiment in experiments for found in experiment.checkpoints()]
    tables: dict[str, tuple[Sequence[Column], list[Item]]] = {
        "experiments": (EXPERIMENT_COLUMNS, [experiment.data for experiment in experiments]),
        "trials": (TRIAL_COLUMNS, trials),
        "checkpoints": (CHECKPOINT_COLUMNS, checkpoints),
    }
    if with_metrics:
        tables["metrics"] = (METRIC_COLUMNS, metric_items(experiments))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (columns, items) in tables.items():
        (folder / f"{name}.csv").write_text(csv_text(columns, items), encoding="utf-8")


def print_metrics(experiments: list[Experiment], arguments: Namespace) -> None:
    """Prints a table with a line for every number, below an empty line."""
    print()
    sys.stdout.flush()
    print_items(METRIC_COLUMNS, metric_items(experiments), arguments)


def metric_items(experiments: list[Experiment]) -> list[dict[str, Any]]:
    """An item for each number that a trial reported."""
    trials = [(experiment.id, trial) for experiment in experiments for trial in experiment.trials()]
    items: list[dict[str, Any]] = []
    with progress("metrics", lambda n: counted(n, "trial")) as shown:
        for done, (experiment_id, trial) in enumerate(trials):
            shown.update(done, len(trials))
            items += _numbers(experiment_id, trial)
    return items


def _numbers(experiment_id: int, trial: Trial) -> list[dict[str, Any]]:
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
