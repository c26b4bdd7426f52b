"""`detcloud schedule`: lists and controls schedules, which `detcloud create` stores."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.table import Column, field_column, time_column
from detcloud.client.schedule import Schedule


def _last_outcome(item: Mapping[str, Any]) -> str | None:
    runs = item.get("runs") or []
    return str(runs[0]["outcome"]) if runs else None


def _last_text(item: Mapping[str, Any]) -> str | None:
    runs = item.get("runs") or []
    return str(runs[0]["text"]) if runs else None


COLUMNS = (
    field_column("Id", "id"),
    field_column("Name", "name", drop_rank=2),
    field_column("Owner", "user", drop_rank=3),
    field_column("Cron", "cron"),
    field_column("Time zone", "time_zone", drop_rank=4),
    field_column("Paused", "paused"),
    time_column("Next", "next_ms"),
    field_column("Last experiment", "last_experiment_id", drop_rank=1),
    Column("Last run", _last_outcome),
)
DETAILS = (
    *COLUMNS,
    Column("Reason", _last_text),
    field_column("Overlap", "overlap"),
    field_column("Catch up", "catch_up"),
    time_column("Created", "created_ms"),
    field_column("Template", "template"),
    field_column("Configuration", "config"),
)
RUN_COLUMNS = (
    time_column("Time", "time_ms"),
    field_column("Outcome", "outcome"),
    field_column("Experiment", "experiment_id"),
    field_column("Reason", "text"),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the output form of `list_schedules`: `--json`, `--yaml` or `--csv`."""
    add_output_options(parser)


def list_schedules(arguments: Namespace) -> int:
    """Print the schedules of all users, the newest first. Return 0. Without schedules, print only
    the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, (found.data for found in connect(arguments).schedules()), arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_schedule`: ID, and `--json`, `--yaml` or `--csv`."""
    add_id_argument(parser)
    add_output_options(parser)


def describe_schedule(arguments: Namespace) -> int:
    """Print a schedule with the configuration, secrets masked, and the last runs. Return 0.

    Raises:
        DetcloudError: no cluster is available, the schedule does not exist, or the request failed.
    """
    schedule = connect(arguments).schedule(arguments.id)
    print_record(DETAILS, schedule.data, arguments)
    if arguments.form == "text" and schedule.runs:
        print()
        print_items(RUN_COLUMNS, schedule.runs, arguments)
    return 0


def add_change_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of changes: ID, and `--json` or `--yaml` for the changed schedule."""
    add_id_argument(parser)
    add_output_options(parser, csv=False)


def pause_schedule(arguments: Namespace) -> int:
    """Pause a schedule, print a confirmation or the schedule, and return 0.

    Raises:
        DetcloudError: no cluster is available, the schedule does not exist, or the cluster refuses.
    """
    schedule = connect(arguments).schedule(arguments.id)
    schedule.pause()
    return _print_change(schedule, arguments, f"schedule {schedule.id} was paused")


def activate_schedule(arguments: Namespace) -> int:
    """Continue a paused schedule, print a confirmation or the schedule, and return 0.

    Raises:
        DetcloudError: no cluster is available, the schedule does not exist, or the cluster refuses.
    """
    schedule = connect(arguments).schedule(arguments.id)
    schedule.activate()
    return _print_change(schedule, arguments, f"schedule {schedule.id} is active")


def run_schedule_now(arguments: Namespace) -> int:
    """Submit an experiment of a schedule, print the experiment's id or the schedule, and return 0.

    Raises:
        DetcloudError: no cluster is available, the schedule does not exist, or the cluster refuses
            the submission.
    """
    schedule = connect(arguments).schedule(arguments.id)
    experiment_id = schedule.run_now()
    return _print_change(schedule, arguments, f"Created experiment {experiment_id}")


def delete_schedule(arguments: Namespace) -> int:
    """Delete a schedule, print a confirmation or the deleted schedule, and return 0.

    The user is not asked. Experiments of the schedule are kept.

    Raises:
        DetcloudError: no cluster is available, the schedule does not exist, or the cluster refuses.
    """
    schedule = connect(arguments).schedule(arguments.id)
    schedule.delete()
    return _print_change(schedule, arguments, f"schedule {schedule.id} was deleted")


def print_created(schedule: Schedule, arguments: Namespace) -> int:
    """Print the id of a new schedule, or all fields with `--json` or `--yaml`. Return 0."""
    return _print_change(schedule, arguments, f"Created schedule {schedule.id}")


def add_id_argument(parser: ArgumentParser) -> None:
    """Add the required argument ID, stored as the integer `id`."""
    parser.add_argument("id", metavar="ID", type=parse_id, help="the schedule's id")


def _print_change(schedule: Schedule, arguments: Namespace, text: str) -> int:
    if arguments.form == "text":
        print(text)
    else:
        print_record(DETAILS, schedule.data, arguments)
    return 0


HANDLERS: Handlers = {
    "schedule list": Handler(add_list_arguments, list_schedules),
    "schedule describe": Handler(add_describe_arguments, describe_schedule),
    "schedule pause": Handler(add_change_arguments, pause_schedule),
    "schedule activate": Handler(add_change_arguments, activate_schedule),
    "schedule run-now": Handler(add_change_arguments, run_schedule_now),
    "schedule delete": Handler(add_change_arguments, delete_schedule),
}
