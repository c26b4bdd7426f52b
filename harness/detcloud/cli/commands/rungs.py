"""`detcloud experiment rungs`: the progress of trials through rungs or rounds of a search."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, field_column
from detcloud.client.records import Rungs

RUNG_COLUMNS = (
    field_column("Bracket", "bracket"),
    Column("Rung", lambda item: item["number"] + 1),
    field_column("Length", "length"),
    field_column("Unit", "unit"),
    field_column("Reached", "reached"),
    Column("Outcomes", lambda item: _outcomes_text(item["outcomes"])),
    field_column("Best", "best_metric"),
    Column("Best trials", lambda item: ", ".join(str(trial["id"]) for trial in item["trials"])),
)
TRIALS_SHOWN = 5


def add_rungs_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_rungs`: EXPERIMENT, `--trials`, None by default, and the output
    form (`--json`, `--yaml` or `--csv`).
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "--trials",
        type=parse_count,
        metavar="N",
        help=f"how many of the best trials of each rung to show (default: {TRIALS_SHOWN} in a"
        " table, else 50)",
    )
    add_output_options(parser)


def show_rungs(arguments: Namespace) -> int:
    """Print a row for each rung, bracket by bracket, or all fields as JSON or YAML. Return 0.

    In a table or CSV without rungs, only the titles are printed, and a notice on stderr. `--trials`
    limits the best trials of a rung, by default to TRIALS_SHOWN in tables and CSV, otherwise to 50.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    experiment = load_experiment(arguments)
    is_document = arguments.form in ("json", "yaml")
    shown = arguments.trials
    if shown is None and not is_document:
        shown = TRIALS_SHOWN
    rungs = experiment.rungs(shown)
    if is_document:
        print_value(rungs, arguments.form)
        return 0
    if not rungs["brackets"]:
        print(
            f"the trials of experiment {experiment.id} are not compared at rungs", file=sys.stderr
        )
    print_items(RUNG_COLUMNS, list(_rung_items(rungs)), arguments)
    return 0


def _rung_items(rungs: Rungs) -> Iterator[dict[str, Any]]:
    """Yield an item for each rung of each bracket: the rung's fields, the bracket's number from 1,
    and the unit. Nothing without brackets.
    """
    for number, bracket in enumerate(rungs["brackets"], 1):
        for rung in bracket["rungs"]:
            yield {"bracket": number, "unit": rungs["unit"], **rung}


def _outcomes_text(outcomes: dict[str, int]) -> str:
    """Return the number of trials of each outcome, for example `3 promoted, 1 stopped`. Outcomes
    without trials are omitted, so that the text may be empty.
    """
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)


HANDLERS: Handlers = {
    "experiment rungs": Handler(add_rungs_arguments, show_rungs),
}
