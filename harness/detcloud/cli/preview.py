"""Shows the trials that a search would make, with the server's own searcher in a child process."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.config import checked, overrides_argument
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.table import Column, field
from detcloud.cli.terminal import counted

COLUMNS = (
    field("Trials", "trials"),
    Column("Train for", lambda item: f"{item['length']} {item['unit']}"),
    Column("In all", lambda item: f"{item['trials'] * item['length']} {item['unit']}"),
)


def preview_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    overrides_argument(parser)
    add_output_options(parser)


def preview(arguments: Namespace) -> int:
    found = checked(arguments.file, arguments.overrides, "--preview")["preview"]
    kinds = [{**kind, "unit": found["unit"]} for kind in found["kinds"]]
    if arguments.form in ("json", "yaml"):
        print_value(found, arguments.form)
        return 0
    print_items(COLUMNS, kinds, arguments)
    if arguments.form == "text":
        trials = sum(kind["trials"] for kind in kinds)
        total = sum(kind["trials"] * kind["length"] for kind in kinds)
        print(f"{found['searcher']}: {counted(trials, 'trial')}, {total} {found['unit']} in all")
    return 0
