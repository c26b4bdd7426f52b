"""The options and the output of reports about a period of days."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from detcloud.cli.framework.argument_types import parse_day
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, Item


def add_period_arguments(parser: ArgumentParser) -> None:
    """Add the days `--since` and `--until`, None by default, and the output form (`--json`,
    `--yaml` or `--csv`).
    """
    parser.add_argument(
        "--since",
        type=parse_day,
        metavar="DAY",
        help="the first day (default: the first of this month)",
    )
    parser.add_argument(
        "--until", type=parse_day, metavar="DAY", help="the last day (default: today)"
    )
    add_output_options(parser)


def print_report(
    columns: Sequence[Column], report: Mapping[str, Any], arguments: Namespace
) -> None:
    """Print a report: as a whole in JSON and YAML, otherwise the table of the groups."""
    if arguments.form in ("json", "yaml"):
        print_value(report, arguments.form)
        return
    items: list[Item] = [{**item} for item in report["items"]]
    print_items(columns, items, arguments)
