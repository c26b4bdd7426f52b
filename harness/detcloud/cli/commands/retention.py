"""`detcloud retention` and the retention verbs of `experiment` and `trial`: logs and metrics."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    connect,
    load_experiment,
    load_trial,
)
from detcloud.cli.rendering.output import add_output_options, print_items, print_note
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import Column, field_column, time_column, time_text
from detcloud.client import Client
from detcloud.shared.plurals import count_text

DAYS_MAX = 32_767
FOREVER = -1

EXPERIMENT_COLUMNS = (
    field_column("Experiment", "experiment_id"),
    field_column("Name", "name", drop_rank=1),
    field_column("User", "user", drop_rank=2),
    time_column("Ended", "ended_ms", drop_rank=3),
    time_column("Logs due", "logs_due_ms"),
    time_column("Metrics due", "metrics_due_ms"),
    Column("Log size", lambda item: bytes_text(item["log_bytes"])),
    Column("Metric size", lambda item: bytes_text(item["metrics_bytes"])),
)
TRIAL_COLUMNS = (
    field_column("Trial", "trial_id"),
    Column("Log size", lambda item: bytes_text(item["log_bytes"])),
    field_column("Logs due", "logs_due"),
    Column("Metric size", lambda item: bytes_text(item["metrics_bytes"])),
    field_column("Metrics due", "metrics_due"),
)


def parse_days(text: str) -> int:
    """Return a number of days from -1 to DAYS_MAX. -1 stands for ever.

    Raises:
        ArgumentTypeError: the text is another number, or no number.
    """
    try:
        days = int(text)
    except ValueError:
        days = FOREVER - 1
    if not FOREVER <= days <= DAYS_MAX:
        raise ArgumentTypeError(f"{text!r} is no number of days from -1 to {DAYS_MAX}")
    return days


def add_experiment_days_arguments(parser: ArgumentParser) -> None:
    """Add the arguments EXPERIMENT and `--days` or `--forever`, stored as `days`."""
    add_experiment_argument(parser)
    _add_days_options(parser)


def add_trial_days_arguments(parser: ArgumentParser) -> None:
    """Add the arguments TRIAL and `--days` or `--forever`, stored as `days`."""
    add_trial_argument(parser)
    _add_days_options(parser)


def set_log_retention(arguments: Namespace) -> int:
    """Set how long the logs of an experiment are kept, print the new retention, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the change.
    """
    return _set_experiment_days(arguments, "log_retention_days", "logs")


def set_metrics_retention(arguments: Namespace) -> int:
    """Set how long detailed metrics of an experiment are kept, print the new retention, and return
    0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the cluster
            refuses the change.
    """
    return _set_experiment_days(arguments, "metrics_retention_days", "detailed metrics")


def set_trial_log_retention(arguments: Namespace) -> int:
    """Set how long the logs of a trial are kept, print the new retention, and return 0.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or the cluster
            refuses the change.
    """
    trial = load_trial(arguments)
    body = {"log_retention_days": arguments.days, "trial_id": trial.id}
    arguments.client.patch(f"/experiments/{trial.experiment_id}/retention", body)
    print(f"the logs of trial {trial.id} are kept {_days_text(arguments.days)}")
    return 0


def add_preview_arguments(parser: ArgumentParser) -> None:
    """Add the optional argument EXPERIMENT, and the output form of `preview_deletion`."""
    parser.add_argument(
        "experiment_id",
        type=parse_id,
        nargs="?",
        metavar="EXPERIMENT",
        help="the experiment's id (default: all experiments with expired data)",
    )
    add_output_options(parser)


def preview_deletion(arguments: Namespace) -> int:
    """Print the data that a cleanup would delete now, and return 0. Nothing is deleted.

    Without EXPERIMENT, print each experiment with expired logs or metrics, with the sizes. With
    EXPERIMENT, print the sizes of each of its trials, and whether their retention has ended.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or a request
            failed.
    """
    client = connect(arguments)
    if arguments.experiment_id is None:
        _print_expired(list(_expired_experiments(client)), arguments)
        return 0
    path = f"/experiments/{arguments.experiment_id}/retention"
    if arguments.form == "text":
        print(_retention_text(client.get(path)))
    print_items(TRIAL_COLUMNS, client.items(f"{path}/trials"), arguments)
    return 0


def add_cleanup_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `clean_up`: `--dry-run`, `--yes` and the output form."""
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would be deleted, and its size"
    )
    add_yes_option(parser)
    add_output_options(parser)


def clean_up(arguments: Namespace) -> int:
    """Delete all expired logs and metrics, after a list and a confirmation.

    The cluster deletes the data within minutes. With `--dry-run`, or without expired data, nothing
    is deleted. Return 1 if the user declined, otherwise 0.

    Raises:
        DetcloudError: no cluster is available, the user is no admin, a request failed, or no
            confirmation is possible because stdin is not a terminal.
    """
    client = connect(arguments)
    expired = list(_expired_experiments(client))
    _print_expired(expired, arguments)
    if arguments.dry_run or not expired:
        return 0
    experiments = count_text(len(expired), "experiment")
    if not confirm(f"Delete this data of {experiments}?", arguments):
        print_note("nothing was deleted")
        return 1
    for item in expired:
        client.post(f"/experiments/{item['experiment_id']}/retention/cleanup")
    print_note(f"the cluster deletes this data of {experiments} within minutes")
    return 0


def _add_days_options(parser: ArgumentParser) -> None:
    """Add the options `--days` and `--forever`. Either option is required."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--days",
        type=parse_days,
        metavar="N",
        help="days from the end of the experiment; 0 deletes soon after the end",
    )
    group.add_argument(
        "--forever",
        dest="days",
        action="store_const",
        const=FOREVER,
        help="keep the data as long as the experiment",
    )


def _set_experiment_days(arguments: Namespace, field: str, subject: str) -> int:
    """Set a retention of an experiment, print the new retention, and return 0."""
    experiment = load_experiment(arguments)
    arguments.client.patch(f"/experiments/{experiment.id}/retention", {field: arguments.days})
    print(f"{subject} of experiment {experiment.id} are kept {_days_text(arguments.days)}")
    return 0


def _days_text(days: int) -> str:
    """Return `for N days after its end`, or `as long as the experiment` for -1."""
    if days < 0:
        return "as long as the experiment"
    return f"for {count_text(days, 'day')} after the end of the experiment"


def _expired_experiments(client: Client) -> Iterator[dict[str, Any]]:
    """Yield the retention of each experiment with expired data, with the bytes of expired data."""
    for item in client.items("/retention", due="true"):
        trials = list(client.items(f"/experiments/{item['experiment_id']}/retention/trials"))
        yield {
            **item,
            "log_bytes": sum(one["log_bytes"] for one in trials if one["logs_due"]),
            "metrics_bytes": sum(one["metrics_bytes"] for one in trials if one["metrics_due"]),
        }


def _print_expired(expired: list[dict[str, Any]], arguments: Namespace) -> None:
    """Print the experiments with expired data, and as text the total size."""
    print_items(EXPERIMENT_COLUMNS, expired, arguments)
    if arguments.form == "text":
        size = sum(item["log_bytes"] + item["metrics_bytes"] for item in expired)
        print(f"expired data: {count_text(len(expired), 'experiment')}, {bytes_text(size)}")


def _retention_text(item: Mapping[str, Any]) -> str:
    """Return the days of an experiment and the time of the next deletion, as lines of text."""
    days = {"logs": item["log_retention_days"], "metrics": item["metrics_retention_days"]}
    lines = [
        f"{name}: kept {_days_text(FOREVER if value is None else value)}"
        for name, value in days.items()
    ]
    for name in days:
        if deleted_ms := item[f"{name}_deleted_ms"]:
            lines.append(f"{name}: deleted on {time_text(deleted_ms)}")
    if item["planned_ms"] is not None:
        lines.append(f"next deletion: {time_text(item['planned_ms'])}")
    return "\n".join(lines)


HANDLERS: Handlers = {
    "experiment set log-retention": Handler(add_experiment_days_arguments, set_log_retention),
    "experiment set metrics-retention": Handler(
        add_experiment_days_arguments, set_metrics_retention
    ),
    "trial set log-retention": Handler(add_trial_days_arguments, set_trial_log_retention),
    "retention preview": Handler(add_preview_arguments, preview_deletion),
    "retention cleanup": Handler(add_cleanup_arguments, clean_up),
}
