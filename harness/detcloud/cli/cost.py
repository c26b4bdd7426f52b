"""What was spent, and on what."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import date

from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, field

BY = ("experiment", "trial", "user", "pool", "day")
TITLES = {"experiment": "Name", "trial": "Experiment"}


def cost_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--by", choices=BY, default="experiment", help="a line for each of these")
    parser.add_argument(
        "--since", type=_day, metavar="DAY", help="the first day (default: the month's first)"
    )
    parser.add_argument("--until", type=_day, metavar="DAY", help="the last day (default: today)")
    add_output_options(parser)


def cost(arguments: Namespace) -> int:
    report = client_of(arguments).cost(arguments.by, arguments.since, arguments.until)
    if arguments.form in ("json", "yaml"):
        print_value(report, arguments.form)
        return 0
    items: list[Item] = [{**item} for item in report["items"]]
    print_items(_columns(arguments.by), items, arguments)
    if arguments.form == "text":
        total = report["total"]
        spent, idle = money(total["instance_cost"]), money(total["idle_cost"])
        print(
            f"{report['since']} to {report['until']}: allocations {money(total['cost'])}, "
            f"instances {spent}, of which idle {idle}"
        )
    return 0


def money(dollars: float | None) -> str | None:
    """Such as $12.40, with more digits where there is less than a dollar; None for None."""
    if dollars is None:
        return None
    return f"${dollars:.4f}" if 0 < dollars < 1 else f"${dollars:.2f}"


def amount(text: str) -> float:
    """Type of an amount of dollars on the command line."""
    try:
        dollars = float(text.removeprefix("$"))
    except ValueError:
        dollars = float("nan")
    if not 0 < dollars < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no amount; expected dollars such as 12.50")
    return dollars


def _columns(by: str) -> tuple[Column, ...]:
    title = (field(TITLES[by], "title"),) if by in TITLES else ()
    cost = Column("Cost", lambda item: money(item["cost"]))
    if by not in ("pool", "day"):
        return field(by.capitalize(), "name"), *title, cost
    return (
        field(by.capitalize(), "name"),
        Column("Instances", lambda item: money(item["instance_cost"])),
        Column("Allocations", lambda item: money(item["cost"])),
        Column("Idle", lambda item: money(item["idle_cost"])),
    )


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no day; expected such as 2026-11-30") from None
