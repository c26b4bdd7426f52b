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
    split_states,
)
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    load_experiment,
    load_trial,
)
from detcloud.cli.rendering.columns import (
    METRIC_SUMMARY_COLUMNS,
    TRIAL_COLUMNS,
    TRIAL_COUNTED_FAILURES,
    TRIAL_DAMAGED_METADATA,
    TRIAL_DAMAGES,
    TRIAL_DETAILS,
    TRIAL_END,
    TRIAL_EXCLUDED_AGENTS,
    TRIAL_HANG,
    TRIAL_LOG_MATCHES,
    TRIAL_LOSSES,
    TRIAL_LOW_USE,
    TRIAL_REPLACEMENTS,
    TRIAL_RETRIES_CANCELED,
    TRIAL_SIGNAL,
    TRIAL_WARM_START,
    USE,
)
from detcloud.cli.rendering.hints import is_cause_in_log
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_record,
    print_value,
)
from detcloud.cli.rendering.table import Item, field_column, time_column

# Fields of a trial by the words of `--sort-by`.
TRIAL_SORT_FIELDS = {
    "number": "number",
    "best": "best_metric",
    "metric": "metric",
    "steps": "steps_completed",
    "restarts": "restarts",
}
METRIC_COLUMNS = (
    field_column("Group", "group"),
    field_column("Steps", "steps_completed"),
    field_column("Metrics", "metrics"),
    time_column("Time", "time_ms"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_trials`: EXPERIMENT, `--metadata`, `--state`, `--sort-by` and
    `--order-by`, None by default, and the output form (`--json`, `--yaml` or `--csv`).

    Also add the paging options `--limit`, by default without a limit, `--offset` and `--pages`.
    """
    add_experiment_argument(parser)
    add_metadata_option(parser)
    parser.add_argument(
        "--state", metavar="STATES", help="list only these states, such as running,failed"
    )
    parser.add_argument(
        "--sort-by",
        choices=TRIAL_SORT_FIELDS,
        help="best and metric: the search's metric, best first (default: best in a search of "
        "several trials, else number)",
    )
    parser.add_argument(
        "--order-by",
        choices=("asc", "desc"),
        help="default: asc; for best and metric the better value comes first",
    )
    add_paging_options(parser, None)
    add_output_options(parser)


def list_trials(arguments: Namespace) -> int:
    """Print the trials of an experiment as text, CSV, JSON or YAML, by default the best first for a
    search. Return 0.

    For the searcher `single`, the order is by number. `--limit` and `--offset` cut the sorted list;
    `--limit` has no default. `--metadata` and `--state` limit the trials. Without trials, print
    only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or refuses, for
            example a wrong `--metadata`.
    """
    experiment = load_experiment(arguments)
    is_search = experiment.searcher != "single"
    sort_by = arguments.sort_by or ("best" if is_search else "number")
    wanted = arguments.metadata or None
    is_listed_order = sort_by == "number" and arguments.order_by != "desc"
    # The cluster lists trials by number; any other order needs all trials.
    limit = fetch_limit(arguments) if is_listed_order else None
    states = split_states(arguments.state)
    trials = list(experiment.trials(limit, metadata=wanted, states=states))
    items = [trial.data for trial in trials]
    if not is_listed_order:
        items = sort_trials(
            items, sort_by, arguments.order_by, smaller_is_better=experiment.smaller_is_better
        )
    shown = skip_offset(items[: fetch_limit(arguments)], arguments)
    print_items(TRIAL_COLUMNS, shown, arguments)
    return 0


def sort_trials(
    items: list[Item], sort_by: str, order_by: str | None, *, smaller_is_better: bool
) -> list[Item]:
    """Return trials sorted by a field of TRIAL_SORT_FIELDS. Equal values keep their order.

    Trials without a value come last, also with `desc`. `items` is unchanged.

    Args:
        sort_by: a key of TRIAL_SORT_FIELDS.
        order_by: `asc`, `desc`, or None for the better metric first and other fields ascending.
        smaller_is_better: whether smaller metrics come first for None as `order_by`.
    """
    field = TRIAL_SORT_FIELDS[sort_by]
    is_metric = sort_by in ("best", "metric")
    descends = order_by == "desc" if order_by else is_metric and not smaller_is_better
    sign = -1 if descends else 1
    measured = [item for item in items if item.get(field) is not None]
    unmeasured = [item for item in items if item.get(field) is None]
    return [*sorted(measured, key=lambda item: sign * item[field]), *unmeasured]


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_trial`: TRIAL, `--metrics`, `--metrics-summary`, and the
    output form (`--json`, `--yaml` or `--csv`).

    Also add the paging options `--limit`, by default without a limit, `--offset` and `--pages`.
    """
    add_trial_argument(parser)
    parser.add_argument(
        "--metrics", action="store_true", help="also show all metrics that the trial reported"
    )
    parser.add_argument(
        "--metrics-summary",
        action="store_true",
        help="also show a summary of each metric",
    )
    add_paging_options(parser, None)
    add_output_options(parser)


_LOG_POLICY_COLUMNS = {
    "signal": TRIAL_SIGNAL,
    "log_matches": TRIAL_LOG_MATCHES,
    "retries_canceled": TRIAL_RETRIES_CANCELED,
    "excluded_agents": TRIAL_EXCLUDED_AGENTS,
}


def describe_trial(arguments: Namespace) -> int:
    """Print a trial as text, CSV, JSON or YAML, and with options also metrics and summaries. Return
    0.

    Fields on losses, replacements, damages and log policies are printed only if the trial has
    these. With
    `--metrics` and `--metrics-summary`, further tables follow, or further fields in JSON and YAML.
    `--limit` and `--offset` cut only the metrics of `--metrics`. For a failed trial, a hint on the
    log may be printed to stderr.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or another request
            failed.
    """
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
    losses += [TRIAL_COUNTED_FAILURES] * bool(trial.data.get("restart_window_ms"))
    losses += [TRIAL_END] * bool(trial.data.get("ends_ms"))
    losses += [USE] * bool(trial.data.get("use"))
    losses += [TRIAL_LOW_USE] * bool((trial.data.get("allocation") or {}).get("low_use"))
    losses += [TRIAL_HANG] * bool((trial.data.get("allocation") or {}).get("hang"))
    # Clusters of older versions do not send `replacements`.
    losses += [TRIAL_REPLACEMENTS] * bool(trial.data.get("replacements"))
    damages = [TRIAL_DAMAGES] * bool(trial.data.get("recent_damages"))
    damages += [TRIAL_DAMAGED_METADATA] * bool(trial.data.get("metadata_damage"))
    # Clusters of older versions do not send the effects of log policies.
    matches = [column for name, column in _LOG_POLICY_COLUMNS.items() if trial.data.get(name)]
    columns = (*TRIAL_DETAILS, *warm_start, *losses, *damages, *matches)
    print_record(columns, trial.data, arguments)
    if trial.state == "ERROR" and is_cause_in_log(trial):
        print(f"hint: `detcloud trial logs {trial.id}` shows why it failed", file=sys.stderr)
    for name, items in tables.items():
        print()
        sys.stdout.flush()
        columns = METRIC_COLUMNS if name == "metrics" else METRIC_SUMMARY_COLUMNS
        print_items(columns, items, arguments)
    return 0


def add_kill_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `kill_trial`: TRIAL and the output form (`--json` or `--yaml`)."""
    add_trial_argument(parser)
    add_output_options(parser, csv=False)


def kill_trial(arguments: Namespace) -> int:
    """End a trial, print the new state, and return 0. The search continues, and the user is not
    asked.

    The trial has at most 15 seconds to store a checkpoint, and the command does not wait. With
    `--json` or `--yaml`, print the trial's fields.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or refuses the
            request.
    """
    return request_state_change(arguments, "trial", f"/trials/{arguments.trial_id}/kill")


HANDLERS: Handlers = {
    "trial list": Handler(add_list_arguments, list_trials),
    "experiment list-trials": Handler(add_list_arguments, list_trials),
    "trial describe": Handler(add_describe_arguments, describe_trial),
    "trial set metadata": metadata_handler("trial", "id", add_trial_argument, load_trial),
    "trial kill": Handler(add_kill_arguments, kill_trial),
}
