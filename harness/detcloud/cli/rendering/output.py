"""Printing of results as text, CSV, JSON or YAML."""

from __future__ import annotations

import json
import sys
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence

from detcloud.cli.rendering.streams import write_data
from detcloud.cli.rendering.table import Column, Item, cell_text, render_csv, render_table
from detcloud.cli.rendering.terminal import has_colour, terminal_width
from detcloud.shared.json_escapes import json_escape
from detcloud.shared.yaml_writer import render_yaml


def add_output_options(parser: ArgumentParser, *, csv: bool = True) -> None:
    """Add the options of the output form: `--json`, `--yaml` and, if `csv`, `--csv`, which exclude
    each other.

    `form` has the choice: `json`, `yaml`, `csv` or, by default, `text`. `print_items` and
    `print_record` read the choice.
    """
    group = parser.add_mutually_exclusive_group()
    forms = {"json": "print JSON, with every field", "yaml": "print YAML, with every field"}
    if csv:
        forms["csv"] = "print CSV, with every column"
    for form, text in forms.items():
        group.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=text)
    parser.set_defaults(form="text")


def print_items(columns: Sequence[Column], items: Iterable[Item], arguments: Namespace) -> None:
    """Print a list to stdout as text, CSV, JSON or YAML, as the options of `add_output_options`
    demand. Text is a table.

    All items are read first. The table fits the terminal by omitting and cutting columns, and CSV
    has all columns. JSON and YAML have all fields. An empty list gives the titles alone, or `[]` in
    JSON and YAML.

    Args:
        columns: the columns of the table and of CSV.
        items: the fields of each item.
    """
    rows = list(items)
    if arguments.form == "text":
        print(render_table(columns, rows, terminal_width(sys.stdout), has_colour(sys.stdout)))
    elif arguments.form == "csv":
        write_data(render_csv(columns, rows))
    else:
        print_value(rows, arguments.form)


def print_note(text: str) -> None:
    """Print a note about the result to stderr, after `note: `. The text is not sanitized."""
    print(f"note: {text}", file=sys.stderr)


def print_record(columns: Sequence[Column], item: Item, arguments: Namespace) -> None:
    """Print an item to stdout as text, CSV, JSON or YAML, as the options of `add_output_options`
    demand.

    As text, each column has a line with title and value, and a value of several lines continues on
    further lines. CSV has a line of titles and a line of values. JSON and YAML have all fields as
    an object.

    Args:
        columns: the columns for text and CSV, at least one.
        item: the fields of the item.
    """
    if arguments.form == "csv":
        write_data(render_csv(columns, [item]))
    elif arguments.form != "text":
        print_value(item, arguments.form)
    else:
        width = max(len(column.title) for column in columns)
        for column in columns:
            value = column.value(item)
            # A message may quote a traceback, which is readable only in lines.
            lines = value.strip().splitlines() if isinstance(value, str) else []
            texts = map(cell_text, lines if len(lines) > 1 else [value])
            print(f"{column.title:<{width}}  {next(texts)}")
            for text in texts:
                print(f"{'':<{width}}  {text}")


def print_value(value: object, form: str = "json") -> None:
    """Print a JSON-compatible value to stdout as indented JSON or as YAML.

    Args:
        form: `yaml`; any other text means JSON.

    Raises:
        TypeError: the value is not JSON-compatible.
    """
    if form == "yaml":
        write_data(render_yaml(value))
    else:
        print(render_json(value))


def render_json(value: object, indent: int | None = 2) -> str:
    """Return JSON with escapes for invisible characters, which could control a terminal. Other
    characters beyond ASCII are kept.

    Args:
        indent: blanks for each level of nesting; None for a single line.

    Raises:
        TypeError: the value is not JSON-compatible.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escape_invisible(character) for character in text)


def _escape_invisible(character: str) -> str:
    """Return a JSON escape for an invisible character other than a newline, and other characters
    unchanged.
    """
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs") or character == "\n":
        return character
    return json_escape(character)
