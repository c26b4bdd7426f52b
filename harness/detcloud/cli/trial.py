"""Commands on trials."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.experiment import experiment_argument
from detcloud.cli.session import cluster_of, count, identifier
from detcloud.cli.table import (
    Column,
    Item,
    add_output_options,
    field,
    print_items,
    print_json,
    print_record,
    time_column,
)


def shown_state(trial: Item) -> str:
    """An active trial is what its allocation is, or waiting for one."""
    if trial["state"] != "ACTIVE":
        return str(trial["state"])
    allocation = trial.get("allocation")
    return str(allocation["state"]) if allocation else "QUEUED"


def _allocation_text(trial: Item) -> str | None:
    """`12.3 RUNNING on agent local, slots 0, 1`."""
    allocation = trial.get("allocation")
    if not allocation:
        return None
    agent = allocation.get("agent_id")
    slots = ", ".join(map(str, allocation.get("slots") or []))
    place = f" on agent {agent}, slots {slots}" if agent else ""
    return f"{allocation['id']} {allocation['state']}{place}"


def hparams_text(trial: Item) -> str:
    """`lr=0.01 layers=3`, nested names joined by dots."""
    return " ".join(f"{name}={_short(value)}" for name, value in _flat(trial.get("hparams") or {}))


COLUMNS = (
    field("ID", "id"),
    field("Number", "number"),
    Column("State", shown_state),
    field("Steps", "steps_completed"),
    field("Target", "target_steps"),
    field("Metric", "metric"),
    field("Best", "best_metric"),
    field("Restarts", "restarts"),
    Column("Hyperparameters", hparams_text),
)
DETAILS = (
    field("ID", "id"),
    field("Experiment", "experiment_id"),
    *COLUMNS[1:],
    field("Seed", "seed"),
    field("Latest checkpoint", "latest_checkpoint"),
    Column("Allocation", _allocation_text),
    time_column("Start time", "created_ms"),
    time_column("End time", "ended_ms"),
    field("Message", "message"),
)
METRIC_COLUMNS = (
    field("Group", "group"),
    field("Steps", "steps_completed"),
    field("Metrics", "metrics"),
    time_column("Time", "time_ms"),
)


def listing_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--limit", type=count, metavar="N", help="only the first (default: all)")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    path = f"/experiments/{arguments.experiment_id}/trials"
    print_items(COLUMNS, cluster_of(arguments).items(path, arguments.limit), arguments)
    return 0


def trial_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "trial_id", type=identifier, metavar="TRIAL", help="its id, as in the list of trials"
    )


def describe_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    parser.add_argument("--metrics", action="store_true", help="the metrics reported, too")
    add_output_options(parser, csv=False)


def describe(arguments: Namespace) -> int:
    trial = cluster_of(arguments).trial(arguments.trial_id)
    metrics = list(trial.metrics()) if arguments.metrics else None
    if arguments.json:
        print_json(trial.data if metrics is None else {**trial.data, "metrics": metrics})
        return 0
    print_record(DETAILS, trial.data, arguments)
    if trial.state == "ERROR":
        print(f"hint: `detcloud trial logs {trial.id}` shows why it failed", file=sys.stderr)
    if metrics is not None:
        print()
        print_items(METRIC_COLUMNS, metrics, arguments)
    return 0


def _flat(hparams: Item, prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in hparams.items():
        if isinstance(value, dict):
            pairs.extend(_flat(value, f"{prefix}{name}."))
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
