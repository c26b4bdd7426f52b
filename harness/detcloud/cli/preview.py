"""Shows what a search would train, with the server's own searcher in a child process."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from detcloud.cli.commands import USAGE
from detcloud.cli.config import FileRefused, checked_slowly, overrides_argument
from detcloud.cli.failures import report
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.table import Column, Item, field
from detcloud.cli.terminal import counted

BAR_CELLS = 24


def preview_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    overrides_argument(parser)
    add_output_options(parser)


def preview(arguments: Namespace) -> int:
    try:
        found = _previewed(arguments)
    except FileRefused as error:
        report(error)
        return USAGE
    if arguments.form in ("json", "yaml"):
        print_value(found, arguments.form)
        return 0
    rungs = _rungs(found)
    print_items(_columns(found, rungs, arguments.form), rungs, arguments)
    if arguments.form == "text":
        print("\n".join(_summary(found, rungs)))
    return 0


def _previewed(arguments: Namespace) -> dict[str, Any]:
    report = checked_slowly("previewing", arguments.file, arguments.overrides, "--preview")
    found: dict[str, Any] = report["preview"]
    return found


def _rungs(found: dict[str, Any]) -> list[Item]:
    return [
        {"bracket": number, "unit": found["unit"], **rung}
        for number, bracket in enumerate(found["brackets"], 1)
        for rung in bracket["rungs"]
    ]


def _columns(found: dict[str, Any], rungs: list[Item], form: str) -> list[Column]:
    """Those that tell something of this search; the bars would be none in a file."""
    columns = [field("Bracket", "bracket")] if len(found["brackets"]) > 1 else []
    columns += [
        field("Trials", "stopped"),
        Column("Train for", lambda rung: f"{rung['length']} {rung['unit']}"),
    ]
    if _expects(found, rungs):
        columns.append(field("Expected", "expected", spare=1))
    amount = Column("In all", lambda rung: f"{rung['stopped'] * rung['length']} {rung['unit']}", 2)
    columns.append(amount)
    if len(rungs) > 1 and form == "text":
        columns.append(_bars(max(rung["reached"] for rung in rungs)))
    return columns


def _bars(longest: int) -> Column:
    """A bar for the trials that reach a rung, the part of those that stop there filled."""
    has_blocks = "utf" in (sys.stdout.encoding or "").lower()
    full, light = "█░" if has_blocks else "#-"

    def bar(rung: Item) -> str:
        stopped, cells = (
            # One trial among many is to be seen, too.
            max(round(rung[name] / longest * BAR_CELLS), rung[name] > 0)
            for name in ("stopped", "reached")
        )
        # A blank, where no text at all would be shown as missing.
        return full * stopped + light * (cells - stopped) or " "

    return Column(f"{full} end there, {light} go on", bar)


def _summary(found: dict[str, Any], rungs: list[Item]) -> list[str]:
    unit = found["unit"]
    worth = (
        "" if unit == "batches" or found["batches"] is None else f" ({found['batches']} batches)"
    )
    brackets = len(found["brackets"])
    beside = f" in {brackets} brackets" if brackets > 1 else ""
    lines = [
        f"{found['searcher']}: {counted(found['trials'], 'trial')}{beside}, "
        f"{found['units']} {unit} in all{worth}"
    ]
    if found["is_example"]:
        lines.append(
            "This is an example, in which trial i validates at i: results decide who trains on."
        )
    if _expects(found, rungs):
        expected = sum(rung["expected"] * rung["length"] for rung in rungs)
        lines.append(
            f"Expected is where trials end if one in `divisor` goes on: {expected} {unit} in all."
        )
    return lines


def _expects(found: dict[str, Any], rungs: list[Item]) -> bool:
    """Whether there is something to expect that the example may not show."""
    return found["is_example"] and all(rung["expected"] is not None for rung in rungs)
