"""`detcloud cost`: shows costs by experiment, trial, user, pool or day."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.period_report import add_period_arguments, print_report
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.quantities import dollars_text
from detcloud.cli.rendering.table import Column, field_column

BY = ("experiment", "trial", "user", "pool", "day")
TITLES = {"experiment": "Name", "trial": "Experiment"}


def add_cost_arguments(parser: ArgumentParser) -> None:
    """Add the options of `show_cost`: `--by` with the choices BY, the days `--since` and `--until`,
    None by default, and the output form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument(
        "--by", choices=BY, default="experiment", help="the grouping of costs (default: experiment)"
    )
    add_period_arguments(parser)


def show_cost(arguments: Namespace) -> int:
    """Print the costs of a period by group and, as text, a line with the total. Return 0.

    By default, the period is this month up to today, in UTC, and the groups are experiments. With
    `--until` alone, the period starts with the month of that day. CSV has a row for each group and
    no total. JSON and YAML have the whole report. Without costs, the table has only titles, and the
    total is $0.00.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example a period that
            ends before its start or is longer than a year.
    """
    report = connect(arguments).cost(arguments.by, arguments.since, arguments.until)
    print_report(_columns(arguments.by), report, arguments)
    if arguments.form == "text":
        total = report["total"]
        spent, idle = dollars_text(total["instance_cost"]), dollars_text(total["idle_cost"])
        print(
            f"{report['since']} to {report['until']}: allocations {dollars_text(total['cost'])}, "
            f"instances {spent}, of which idle {idle}"
        )
    return 0


def _columns(by: str) -> tuple[Column, ...]:
    """Return the columns for a grouping of BY: the name and the cost, and for experiments and
    trials a title. Pools and days have costs of instances, allocations and idle time instead.
    """
    title = (field_column(TITLES[by], "title"),) if by in TITLES else ()
    cost = Column("Cost", lambda item: dollars_text(item["cost"]))
    if by not in ("pool", "day"):
        return field_column(by.capitalize(), "name"), *title, cost
    return (
        field_column(by.capitalize(), "name"),
        Column("Instances", lambda item: dollars_text(item["instance_cost"])),
        Column("Allocations", lambda item: dollars_text(item["cost"])),
        Column("Idle", lambda item: dollars_text(item["idle_cost"])),
    )


HANDLERS: Handlers = {
    "cost": Handler(add_cost_arguments, show_cost),
}
