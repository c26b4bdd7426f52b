"""`detcloud preview-search`: previews the trials and lengths of a search.

The server's searcher runs in a child process.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import USAGE
from detcloud.cli.framework.failures import report_failure
from detcloud.cli.framework.options import add_overrides_option
from detcloud.cli.local.config_checker import InvalidConfigError, check_file_with_progress
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, Item, field_column
from detcloud.shared.plurals import count_text

BAR_CELLS = 24


def add_preview_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `preview_search`: the path FILE, `--config` and the output form
    (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    add_overrides_option(parser)
    add_output_options(parser)


def preview_search(arguments: Namespace) -> int:
    """Print the rungs of a search and a summary, and return 0. Return USAGE if the configuration
    was refused, after printing the problems to stderr.

    The search is computed on this machine, without a cluster, and with a progress line on stderr.
    JSON and YAML have the whole preview, and CSV has the rungs without a summary.

    Raises:
        DetcloudError: the checker failed, or the server is not installed.
    """
    try:
        preview = _run_preview(arguments)
    except InvalidConfigError as error:
        report_failure(error)
        return USAGE
    if arguments.form in ("json", "yaml"):
        print_value(preview, arguments.form)
        return 0
    rungs = _rung_items(preview)
    print_items(_columns(preview, rungs, arguments.form), rungs, arguments)
    if arguments.form == "text":
        print("\n".join(_summary_lines(preview, rungs)))
    return 0


def _run_preview(arguments: Namespace) -> dict[str, Any]:
    """Return the preview of the server's checker, which runs in a child process with a progress
    line. The wait has no limit.

    Raises:
        InvalidConfigError: the configuration has problems.
        DetcloudError: the checker failed, or the server is not installed.
    """
    report = check_file_with_progress(
        "previewing", arguments.file, arguments.overrides, "--preview"
    )
    preview: dict[str, Any] = report["preview"]
    return preview


def _rung_items(preview: dict[str, Any]) -> list[Item]:
    """Return an item for each rung of each bracket: the rung's fields, the bracket's number from 1,
    and the unit. Empty without brackets.
    """
    return [
        {"bracket": number, "unit": preview["unit"], **rung}
        for number, bracket in enumerate(preview["brackets"], 1)
        for rung in bracket["rungs"]
    ]


def _columns(preview: dict[str, Any], rungs: list[Item], form: str) -> list[Column]:
    """Return the columns that apply to this search. Several brackets have numbers, and examples
    have expected counts.

    Args:
        preview: the result of `_run_preview`.
        rungs: the result of `_rung_items`.
        form: the output form, `text`, `csv`, `json` or `yaml`. Only `text` has bars, if the search
            has several rungs.
    """
    columns = [field_column("Bracket", "bracket")] if len(preview["brackets"]) > 1 else []
    columns += [
        field_column("Trials", "stopped"),
        Column("Train for", lambda rung: f"{rung['length']} {rung['unit']}"),
    ]
    if _has_expectation(preview, rungs):
        columns.append(field_column("Expected", "expected", drop_rank=1))
    amount = Column("Total", lambda rung: f"{rung['stopped'] * rung['length']} {rung['unit']}", 2)
    columns.append(amount)
    if len(rungs) > 1 and form == "text":
        columns.append(_bar_column(max(rung["reached"] for rung in rungs)))
    return columns


def _bar_column(longest: int) -> Column:
    """Return a column of bars: a bar shows the trials that reach a rung; the filled part shows the
    trials that stop.

    The characters are ASCII unless the encoding of stdout is a UTF encoding.

    Args:
        longest: the number of trials of the longest bar, at least 1.
    """
    has_blocks = "utf" in (sys.stdout.encoding or "").lower()
    full, light = "█░" if has_blocks else "#-"

    def bar(rung: Item) -> str:
        stopped, cells = (
            # One trial among many is visible, too.
            max(round(rung[name] / longest * BAR_CELLS), rung[name] > 0)
            for name in ("stopped", "reached")
        )
        # A blank, since an empty text would be shown as missing.
        return full * stopped + light * (cells - stopped) or " "

    return Column(f"{full} stop, {light} continue", bar)


def _summary_lines(preview: dict[str, Any], rungs: list[Item]) -> list[str]:
    """Return a line with the totals of the search. Further lines explain examples and expected
    counts if the preview has these.
    """
    unit = preview["unit"]
    worth = (
        ""
        if unit == "batches" or preview["batches"] is None
        else f" ({count_text(preview['batches'], 'batch', 'batches')})"
    )
    brackets = len(preview["brackets"])
    in_brackets = f" in {brackets} brackets" if brackets > 1 else ""
    lines = [
        f"{preview['searcher']}: {count_text(preview['trials'], 'trial')}{in_brackets}, "
        f"{preview['units']} {unit} in all{worth}"
    ]
    if preview["is_example"]:
        lines.append(
            "This is an example in which trial i has the metric i: in a real search the "
            "results decide which trials continue."
        )
    if _has_expectation(preview, rungs):
        expected = sum(rung["expected"] * rung["length"] for rung in rungs)
        lines.append(
            f"Expected counts assume that one in `divisor` trials continues: {expected} "
            f"{unit} in all."
        )
    return lines


def _has_expectation(preview: dict[str, Any], rungs: list[Item]) -> bool:
    """Return whether the preview is an example in which all rungs have expected counts."""
    return preview["is_example"] and all(rung["expected"] is not None for rung in rungs)


HANDLERS: Handlers = {
    "preview-search": Handler(add_preview_arguments, preview_search),
}
