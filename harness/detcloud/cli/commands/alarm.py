"""`detcloud alarm`: lists the raised alarms of a cluster."""

from __future__ import annotations

from argparse import Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items
from detcloud.cli.rendering.table import Column, field_column, time_column

COLUMNS = (
    field_column("Alarm", "alarm"),
    Column("Resource pool", lambda alarm: alarm["pool"] or None),
    time_column("Raised", "raised_ms", drop_rank=2),
    field_column("Found", "text"),
    field_column("Runbook", "runbook", drop_rank=1),
)


def list_alarms(arguments: Namespace) -> int:
    """Print the raised alarms as text, CSV, JSON or YAML, and return 0. Without alarms, print only
    the titles, or `[]` as JSON or YAML.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, connect(arguments).alarms(), arguments)
    return 0


HANDLERS: Handlers = {
    "alarm list": Handler(add_output_options, list_alarms),
}
