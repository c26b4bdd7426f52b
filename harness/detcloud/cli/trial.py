"""Commands on trials."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.cost import money
from detcloud.cli.experiment import experiment_argument, has_printed
from detcloud.cli.options import add_paging_options, fetched_max, identifier, paged
from detcloud.cli.output import add_output_options, print_items, print_record, print_value
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, field, time_column, time_text
from detcloud.client import Trial


def shown_state(trial: Item) -> str:
    """An active trial is what its allocation is, or waiting for one."""
    if trial["state"] != "ACTIVE":
        return str(trial["state"])
    allocation = trial.get("allocation")
    return str(allocation["state"]) if allocation else "QUEUED"


def _allocation_text(trial: Item) -> str | None:
    """`12.3 RUNNING on agent local, slots 0, 1`; the agents of a gang one after the other."""
    allocation = trial.get("allocation")
    if not allocation:
        return None
    places = " and ".join(
        f"agent {place['agent_id']}, slots {', '.join(map(str, place['slots']))}"
        for place in allocation.get("places") or []
    )
    return f"{allocation['id']} {allocation['state']}{places and f' on {places}'}"


def _losses_text(trial: Item) -> str:
    """How many, and a line for each of the last few: when, where and why."""
    lines = [f"{trial['losses']}, which are no failures:"]
    for loss in trial["recent_losses"]:
        place = f" agent {loss['agent_id']}" if loss["agent_id"] else ""
        lines.append(f"{time_text(loss['time_ms'])}{place}: {loss['cause']}")
    return "\n".join(lines)


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
    Column("Cost", lambda trial: money(trial.get("cost"))),
    time_column("Start time", "created_ms"),
    time_column("End time", "ended_ms"),
    field("Message", "message"),
)
# Few trials start from another's checkpoint, or lose their machine.
WARM_START = field("Warm start", "warm_start")
LOSSES = Column("Losses", _losses_text)
METRIC_COLUMNS = (
    field("Group", "group"),
    field("Steps", "steps_completed"),
    field("Metrics", "metrics"),
    time_column("Time", "time_ms"),
)
SUMMARY_COLUMNS = (
    field("Group", "group"),
    field("Name", "name"),
    field("Count", "count"),
    field("Last steps", "last_steps", spare=1),
    field("Last", "last"),
    field("Minimum", "minimum"),
    field("Maximum", "maximum"),
    field("Mean", "mean", spare=2),
)


def listing_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    add_paging_options(parser, None)
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    path = f"/experiments/{arguments.experiment_id}/trials"
    found = client_of(arguments).items(path, fetched_max(arguments))
    print_items(COLUMNS, paged(found, arguments), arguments)
    return 0


def trial_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "trial_id", type=identifier, metavar="TRIAL", help="its id, as in the list of trials"
    )


def trial_of(arguments: Namespace) -> Trial:
    """The trial that `trial_argument` names."""
    return client_of(arguments).trial(arguments.trial_id)


def describe_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    parser.add_argument("--metrics", action="store_true", help="every metric it reported, too")
    parser.add_argument(
        "--metrics-summary", action="store_true", help="its metrics in short, a line for each"
    )
    add_paging_options(parser, None)
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    trial = trial_of(arguments)
    tables: dict[str, list[Item]] = {}
    if arguments.metrics_summary:
        tables["metrics_summary"] = [{**summary} for summary in trial.metric_summaries()]
    if arguments.metrics:
        limit = fetched_max(arguments)
        reports = list(trial.metrics())[:limit]
        tables["metrics"] = [{**report} for report in paged(reports, arguments)]
    if arguments.form in ("json", "yaml"):
        print_value({**trial.data, **tables}, arguments.form)
        return 0
    started_warm = trial.data.get("warm_start") or arguments.form == "csv"
    columns = (*DETAILS, *[WARM_START] * bool(started_warm), *[LOSSES] * bool(trial.losses))
    print_record(columns, trial.data, arguments)
    if trial.state == "ERROR" and has_printed(trial):
        print(f"hint: `detcloud trial logs {trial.id}` shows why it failed", file=sys.stderr)
    for name, items in tables.items():
        print()
        sys.stdout.flush()
        print_items(METRIC_COLUMNS if name == "metrics" else SUMMARY_COLUMNS, items, arguments)
    return 0


def kill_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    add_output_options(parser, csv=False)


def kill(arguments: Namespace) -> int:
    answer = client_of(arguments).post(f"/trials/{arguments.trial_id}/kill")
    if arguments.form == "text":
        print(f"trial {answer['id']} is {answer['state']}")
    else:
        print_value(answer, arguments.form)
    return 0


def _flat(hparams: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in hparams.items():
        if isinstance(value, dict):
            pairs.extend(_flat(value, f"{prefix}{name}."))
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
