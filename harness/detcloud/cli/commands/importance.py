"""`detcloud experiment importance`: how much each hyperparameter matters for a metric."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import add_experiment_argument, load_experiment
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_note,
    print_value,
)
from detcloud.cli.rendering.table import Column, field_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.importance_records import Importance
from detcloud.shared.plurals import count_text

IMPORTANCE_COLUMNS = (
    field_column("Hyperparameter", "name"),
    Column("Importance", lambda item: _percent(item["share"]), exact=lambda item: item["share"]),
    Column("From", lambda item: _percent(item["low"]), exact=lambda item: item["low"]),
    Column("To", lambda item: _percent(item["high"]), exact=lambda item: item["high"]),
)


def add_importance_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_importance`: EXPERIMENT, `--metric`, `--at` and the
    output form (`--json`, `--yaml` or `--csv`).
    """
    add_experiment_argument(parser)
    parser.add_argument(
        "--metric", metavar="NAME", help="a validation metric (default: the searcher metric)"
    )
    parser.add_argument(
        "--at",
        type=parse_count,
        metavar="LENGTH",
        help="compare results after this length of training, in the unit of the search (default:"
        " the largest length at which enough trials have a result)",
    )
    add_output_options(parser)


def show_importance(arguments: Namespace) -> int:
    """Print a row for each hyperparameter that differs between trials, or all fields as JSON or
    YAML. Return 0.

    The most important hyperparameter is the first. As text, a line before the table names the
    metric, the length and the number of trials, and a line after the table has the share of
    interactions. In a table or CSV, notes about the limits of the result are printed to stderr.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    experiment = load_experiment(arguments)
    importance = experiment.importance(arguments.metric, arguments.at)
    if arguments.form in ("json", "yaml"):
        print_value(importance, arguments.form)
        return 0
    items: list[dict[str, Any]] = [{**item} for item in importance["items"]]
    is_text = arguments.form == "text"
    if is_text and importance["at"] is not None:
        print(_headline(importance))
    if items or not is_text:
        print_items(IMPORTANCE_COLUMNS, items, arguments)
    if is_text and importance["interactions"] is not None:
        print(f"interactions of several hyperparameters: {_percent(importance['interactions'])}")
    if importance["note"]:
        sys.stdout.flush()
        print_note(sanitize(importance["note"]))
    return 0


def _headline(importance: Importance) -> str:
    """Return a line with metric, direction, length and number of trials."""
    direction = {True: " (smaller is better)", False: " (larger is better)", None: ""}
    metric = f"{sanitize(importance['metric'])}{direction[importance['smaller_is_better']]}"
    length = f"{importance['at']} {importance['unit']}"
    return f"{metric} after {length}, {count_text(importance['trials'], 'trial')}"


def _percent(share: float) -> str:
    """Return a share from 0 to 1 in whole percent, for example `71 %`."""
    return f"{100 * share:.0f} %"


HANDLERS: Handlers = {
    "experiment importance": Handler(add_importance_arguments, show_importance),
}
