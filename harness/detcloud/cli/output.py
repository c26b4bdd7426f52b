"""One renderer for every answer: text, CSV, or every field as JSON or YAML."""

from __future__ import annotations

import json
import sys
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence

from detcloud.cli.table import Column, Item, cell_text, csv_text, text_table
from detcloud.cli.terminal import has_colour, width_of


def add_output_options(parser: ArgumentParser, *, csv: bool = True) -> None:
    """Adds `--json`, `--yaml` and `--csv`, one of which may be given; `form` says which."""
    group = parser.add_mutually_exclusive_group()
    forms = {"json": "print JSON, with every field", "yaml": "print YAML, with every field"}
    if csv:
        forms["csv"] = "print CSV, with every column"
    for form, text in forms.items():
        group.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=text)
    parser.set_defaults(form="text")


def print_items(columns: Sequence[Column], items: Iterable[Item], arguments: Namespace) -> None:
    """Prints a list in the form that the options of `add_output_options` ask for."""
    found = list(items)
    if arguments.form == "text":
        print(text_table(columns, found, width_of(sys.stdout), has_colour(sys.stdout)))
    elif arguments.form == "csv":
        sys.stdout.write(csv_text(columns, found))
    else:
        print_value(found, arguments.form)


def print_record(columns: Sequence[Column], item: Item, arguments: Namespace) -> None:
    """Prints one item, in text as a line for each field."""
    if arguments.form == "csv":
        sys.stdout.write(csv_text(columns, [item]))
    elif arguments.form != "text":
        print_value(item, arguments.form)
    else:
        width = max(len(column.title) for column in columns)
        for column in columns:
            value = column.value(item)
            # A message may quote a traceback, whose lines are what makes it readable.
            lines = value.strip().splitlines() if isinstance(value, str) else []
            texts = map(cell_text, lines if len(lines) > 1 else [value])
            print(f"{column.title:<{width}}  {next(texts)}")
            for text in texts:
                print(f"{'':<{width}}  {text}")


def print_value(value: object, form: str = "json") -> None:
    """Prints anything that JSON can hold, as `json` or `yaml`."""
    if form == "yaml":
        from detcloud.cli.yaml_text import yaml_text

        sys.stdout.write(yaml_text(value))
    else:
        print(json_text(value))


def json_text(value: object, indent: int | None = 2) -> str:
    """JSON in which invisible characters, which could steer a terminal, are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs") or character == "\n":
        return character
    return json.dumps(character)[1:-1]
