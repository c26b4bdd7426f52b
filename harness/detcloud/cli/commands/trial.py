"""`detcloud trial`: lists, describes, changes and kills trials."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.lifecycle import request_state_change
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.metadata_values import metadata_handler
from detcloud.cli.framework.options import (
    add_metadata_option,
    add_paging_options,
    fetch_limit,
    skip_offset,
)
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    connect,
    load_trial,
)
from detcloud.cli.rendering.columns import (
    METRIC_SUMMARY_COLUMNS,
    TRIAL_COLUMNS,
    TRIAL_DAMAGES,
    TRIAL_DETAILS,
    TRIAL_LOSSES,
    TRIAL_WARM_START,
)
from detcloud.cli.rendering.hints import has_log
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_record,
    print_value,
)
from detcloud.cli.rendering.table import Item, field_column, time_column

METRIC_COLUMNS = (
    field_column("Group", "group"),
    field_column("Steps", "steps_completed"),
    field_column("Metrics", "metrics"),
    time_column("Time", "time_ms"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    add_experiment_argument(parser)
    add_metadata_option(parser)
    add_paging_options(parser, None)
    add_output_options(parser)


def list_trials(arguments: Namespace) -> int:
    path = f"/experiments/{arguments.experiment_id}/trials"
    wanted = arguments.metadata or None
    items = connect(arguments).items(path, fetch_limit(arguments), metadata=wanted)
    print_items(TRIAL_COLUMNS, skip_offset(items, arguments), arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    add_trial_argument(parser)
    parser.add_argument(
        "--metrics", action="store_true", help="also show every metric that it reported"
    )
    parser.add_argument(
        "--metrics-summary",
        action="store_true",
        help="show a summary of its metrics, one line each",
    )
    add_paging_options(parser, None)
    add_output_options(parser)


def describe_trial(arguments: Namespace) -> int:
    trial = load_trial(arguments)
    tables: dict[str, list[Item]] = {}
    if arguments.metrics_summary:
        tables["metrics_summary"] = [{**summary} for summary in trial.metric_summaries()]
    if arguments.metrics:
        limit = fetch_limit(arguments)
        reports = list(trial.metrics())[:limit]
        tables["metrics"] = [{**report} for report in skip_offset(reports, arguments)]
    if arguments.form in ("json", "yaml"):
        print_value({**trial.data, **tables}, arguments.form)
        return 0
    shows_warm_start = bool(trial.data.get("warm_start") or arguments.form == "csv")
    warm_start = [TRIAL_WARM_START] * shows_warm_start
    losses = [TRIAL_LOSSES] * bool(trial.losses)
    damages = [TRIAL_DAMAGES] * bool(trial.data.get("recent_damages"))
    print_record((*TRIAL_DETAILS, *warm_start, *losses, *damages), trial.data, arguments)
    if trial.state == "ERROR" and has_log(trial):
        print(f"hint: `detcloud trial logs {trial.id}` shows why it failed", file=sys.stderr)
    for name, items in tables.items():
        print()
        sys.stdout.flush()
        columns = METRIC_COLUMNS if name == "metrics" else METRIC_SUMMARY_COLUMNS
        print_items(columns, items, arguments)
    return 0


def add_kill_arguments(parser: ArgumentParser) -> None:
    add_trial_argument(parser)
    add_output_options(parser, csv=False)


def kill_trial(arguments: Namespace) -> int:
    return request_state_change(arguments, "trial", f"/trials/{arguments.trial_id}/kill")


HANDLERS: Handlers = {
    "trial list": Handler(add_list_arguments, list_trials),
    "experiment list-trials": Handler(add_list_arguments, list_trials),
    "trial describe": Handler(add_describe_arguments, describe_trial),
    "trial set metadata": metadata_handler("trial", "id", add_trial_argument, load_trial),
    "trial kill": Handler(add_kill_arguments, kill_trial),
}
