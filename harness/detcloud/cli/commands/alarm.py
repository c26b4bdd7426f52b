"""`detcloud alarm`: lists the alarms of a cluster, and prints the pages of the runbook."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.local.server import server_path
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_note,
    print_value,
)
from detcloud.cli.rendering.table import Column, field_column, time_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import NoCluster
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError, Unreachable
from detcloud.shared.runbook import FOLDER, alarm_names, read_page

ALARM = field_column("Alarm", "alarm")
POOL = Column("Resource pool", lambda alarm: alarm["pool"] or None)
FOUND = Column("Found", lambda alarm: alarm["text"] or None)
COLUMNS = (
    ALARM,
    POOL,
    time_column("Raised", "raised_ms", drop_rank=2),
    FOUND,
    Column("Runbook", lambda alarm: f"detcloud alarm describe {alarm['alarm']}", drop_rank=1),
)
# Clusters of older versions send raised alarms without these fields.
STATE_COLUMNS = (
    ALARM,
    POOL,
    Column("State", lambda alarm: alarm.get("state", "raised")),
    Column("Value", lambda alarm: alarm.get("value") or None),
    Column("Threshold", lambda alarm: alarm.get("threshold") or None, drop_rank=1),
    time_column("Since", "since_ms", drop_rank=2),
    FOUND,
)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_alarms`: `--all` and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    parser.add_argument(
        "--all",
        "-a",
        action="store_true",
        help="also list alarms that are not raised, with values and thresholds",
    )
    add_output_options(parser)


def list_alarms(arguments: Namespace) -> int:
    """Print the raised alarms, or all alarms with `--all`, as text, CSV, JSON or YAML. Return 0.

    Without alarms, print only the titles, or `[]` as JSON or YAML.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    columns = STATE_COLUMNS if arguments.all else COLUMNS
    print_items(columns, connect(arguments).alarms(raised_only=not arguments.all), arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_alarm`: ALARM and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    parser.add_argument("alarm", metavar="ALARM", help="the name of the alarm, such as queue-wait")
    add_output_options(parser)


def describe_alarm(arguments: Namespace) -> int:
    """Print the page of an alarm in the runbook, and then the alarm's state. Return 0.

    The page is part of detcloud, and printed before the cluster is asked. If no cluster answers,
    print a note to stderr instead of the state. Alarms that a cloud evaluates have no state here.
    As JSON or YAML, `items` has the states, or is null without an answer, and `runbook` the
    Markdown of the page. CSV has the states only.

    Raises:
        DetcloudError: the runbook has no such alarm, or the cluster refuses the request.
    """
    folder = server_path(packages=()) / FOLDER
    page = read_page(folder, arguments.alarm)
    if page is None:
        known = ", ".join(alarm_names(folder))
        raise DetcloudError(f"there is no alarm {arguments.alarm}; the alarms are {known}")
    if arguments.form == "csv":
        print_items(STATE_COLUMNS, _read_states(arguments) or [], arguments)
        return 0
    if arguments.form != "text":
        items = _read_states(arguments)
        print_value({"alarm": arguments.alarm, "items": items, "runbook": page}, arguments.form)
        return 0
    for line in page.rstrip().split("\n"):
        print(sanitize(line))
    sys.stdout.flush()
    if items := _read_states(arguments):
        print()
        print_items(STATE_COLUMNS, items, arguments)
    return 0


def _read_states(arguments: Namespace) -> list[dict[str, Any]] | None:
    """Return the states of the alarm. Return None, after a note, if no cluster answers.

    Raises DetcloudError if the cluster refuses the request.
    """
    try:
        items: list[dict[str, Any]] = connect(arguments).alarm(arguments.alarm)["items"]
        return items
    except (NoCluster, Unreachable) as error:
        print_note(f"the state of the alarm is not known: {error}")
    except ApiError as error:
        # A cluster that fails is a reason to read the runbook. Older versions have no such route.
        if error.status < 500 and error.status != 404:
            raise
        print_note(f"the state of the alarm is not known: {error}")
    return None


HANDLERS: Handlers = {
    "alarm list": Handler(add_list_arguments, list_alarms),
    "alarm describe": Handler(add_describe_arguments, describe_alarm),
}
