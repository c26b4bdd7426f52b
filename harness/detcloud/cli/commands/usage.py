"""`detcloud usage`: shows the use of slots, and the money that computed little."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.period_report import add_period_arguments, print_report
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.quantities import dollars_text, hours_text, percent_text
from detcloud.cli.rendering.table import Column, field_column

BY = ("experiment", "trial", "user", "project", "workspace", "pool", "day", "pool-day")
TITLES = {
    "experiment": "Name",
    "trial": "Experiment",
    "project": "Workspace",
    "pool-day": "Pool",
}
_SHARES = ("pool", "day", "pool-day")


def add_usage_arguments(parser: ArgumentParser) -> None:
    """Add the options of `show_usage`: `--by`, `--since`, `--until` and the output forms.

    The choices of `--by` are BY. Both days are None by default.
    """
    parser.add_argument(
        "--by", choices=BY, default="experiment", help="the grouping (default: experiment)"
    )
    add_period_arguments(parser)


def show_usage(arguments: Namespace) -> int:
    """Print the use of slots by group and, as text, a line with the total. Return 0.

    By default, the period is this month up to today, in UTC, and the groups are experiments. CSV
    has a row for each group and no total. JSON and YAML have the whole report.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example a period that
            ends before its start or is longer than a year.
    """
    report = connect(arguments).usage(arguments.by, arguments.since, arguments.until)
    print_report(_columns(arguments.by), report, arguments)
    if arguments.form == "text":
        total = report["total"]
        use = percent_text(total["use_percent"]) or "unknown"
        hours = hours_text(total["slot_hours"])
        print(
            f"{report['since']} to {report['until']}: {hours} slot hours, mean use {use}; "
            f"paid {dollars_text(total['instance_cost'])}, of which wasted "
            f"{dollars_text(total['wasted'])}: idle {dollars_text(total['idle_cost'])}, low use "
            f"{dollars_text(total['low_cost'])}"
        )
    return 0


def _columns(by: str) -> tuple[Column, ...]:
    """Return the columns for a grouping of BY. Pools and days also have paid and idle costs."""
    name = "Day" if by == "pool-day" else by.capitalize()
    title = (field_column(TITLES[by], "title"),) if by in TITLES else ()
    shared: tuple[Column, ...] = ()
    if by in _SHARES:
        shared = (
            Column("Paid", lambda item: dollars_text(item["instance_cost"])),
            Column("Idle", lambda item: dollars_text(item["idle_cost"])),
        )
    return (
        field_column(name, "name"),
        *title,
        Column("Slot hours", lambda item: hours_text(item["slot_hours"])),
        Column("Use", lambda item: percent_text(item["use_percent"])),
        Column("Memory", lambda item: percent_text(item["memory_percent"]), 1),
        Column("Cost", lambda item: dollars_text(item["cost"])),
        *shared,
        Column("Low use", lambda item: dollars_text(item["low_cost"])),
        Column("Wasted", lambda item: dollars_text(item["wasted"])),
    )


HANDLERS: Handlers = {
    "usage": Handler(add_usage_arguments, show_usage),
}
