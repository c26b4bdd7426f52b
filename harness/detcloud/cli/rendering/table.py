"""Tables of items as aligned text or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from detcloud.cli.rendering.terminal import (
    STATE_COLOURS,
    colourize,
    display_width,
    sanitize,
    truncate,
)

Item = dict[str, Any]

MISSING = "N/A"
COLUMN_WIDTH_MIN = 8
SHORT_MESSAGE_CELLS = 400
_FORMULA_STARTS = ("=", "+", "-", "@")


class Column(NamedTuple):
    """A column of a table."""

    title: str
    """The text above the column."""
    value: Callable[[Item], object]
    """Returns the value of an item: a number, a text, or None, which is printed as N/A."""
    drop_rank: int = 0
    """The order in which columns are omitted if lines are too wide, highest rank first. Columns of
    rank 0 are always printed.
    """
    exact: Callable[[Item], object] | None = None
    """Returns the value for CSV, if `value` returns a text for users only. Maps and lists become
    JSON.
    """
    exact_title: str = ""
    """The title in CSV, if the title of tables has changed. Scripts read CSV by its titles."""
    colour: Callable[[str], str | None] = STATE_COLOURS.get
    """Returns the colour of a cell's text, a key of COLOURS, or None or "" for no colour."""


def field_column(title: str, name: str, drop_rank: int = 0) -> Column:
    """Return a column with the value of a field of an item. A missing field is None, printed as
    N/A.

    Args:
        title: the text above the column.
        name: the key of the field.
        drop_rank: the order in which columns are omitted if lines are too wide, highest rank first;
            0 for never.
    """
    return Column(title, lambda item: item.get(name), drop_rank)


def time_column(title: str, name: str, drop_rank: int = 0) -> Column:
    """Return a column with the UTC time of a field in epoch milliseconds. A missing field is None,
    printed as N/A.

    Args:
        title: the text above the column.
        name: the key of the field.
        drop_rank: the order in which columns are omitted if lines are too wide, highest rank first;
            0 for never.
    """
    return Column(title, lambda item: time_text(item.get(name)), drop_rank)


def render_table(
    columns: Sequence[Column], items: Sequence[Item], width: int | None, colour: bool = False
) -> str:
    """Return a table with titles, without a newline at the end. Columns of numbers are aligned to
    the right. Without items, only the titles and a rule are returned.

    If lines are wider than `width`, columns with a `drop_rank` are omitted, highest rank first.
    Then the widest columns are truncated to COLUMN_WIDTH_MIN at least. Lines may therefore stay
    wider than `width`.

    Args:
        width: the maximum width in cells; None for no limit.
        colour: whether to colour cells, such as the names of states.
    """
    values = {column: [column.value(item) for item in items] for column in columns}
    cells = {column: list(map(cell_text, values[column])) for column in columns}
    widths = {column: max(map(display_width, (column.title, *cells[column]))) for column in columns}
    visible = _visible_columns(widths, width)
    titles = [column.title for column in visible]
    fitting_widths = _fit_widths([widths[column] for column in visible], width)
    right = [_is_numeric(values[column]) for column in visible]
    rows = [[cells[column][place] for column in visible] for place in range(len(items))]
    plain: list[str | None] = [None] * len(visible)
    lines = [
        _render_line(titles, fitting_widths, [False] * len(visible), plain),
        "+".join("-" * (size + 2) for size in fitting_widths),
    ]
    for row in rows:
        colours = [column.colour(text) for column, text in zip(visible, row, strict=True)]
        lines.append(_render_line(row, fitting_widths, right, colours if colour else plain))
    return "\n".join(lines)


def render_csv(columns: Sequence[Column], items: Sequence[Item]) -> str:
    """Return CSV (RFC 4180, but with `\\n` as line end) with a line of titles. All columns are
    included.

    A text that a spreadsheet would run as a formula gets a leading apostrophe. Missing values are
    N/A. Columns with `exact` have exact values.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(column.exact_title or column.title for column in columns)
    for item in items:
        writer.writerow(_csv_cell((column.exact or column.value)(item)) for column in columns)
    return file.getvalue()


def cell_text(value: object) -> str:
    """Return the text of a cell, without line breaks and control characters, which become blanks or
    U+FFFD.

    Floats have six significant digits, and maps and lists are JSON. None, "" and an empty list are
    N/A.
    """
    if value is None or value == "" or value == []:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        return sanitize(json.dumps(value, ensure_ascii=False))
    return sanitize(str(value))


def shorten_message(message: str) -> str:
    """Return the first and the last line of a message, joined by a blank. The message may quote a
    log in between.

    A message of at most two lines is kept, with blanks for line breaks. Control characters are
    replaced by `sanitize`. The result is cut to SHORT_MESSAGE_CELLS cells. An empty message gives
    N/A, and a message of blanks is kept.
    """
    lines = message.strip().splitlines()
    return truncate(
        cell_text(message if len(lines) < 3 else f"{lines[0]} {lines[-1]}"), SHORT_MESSAGE_CELLS
    )


def time_text(time_ms: int | None) -> str | None:
    """Return epoch milliseconds as UTC in whole seconds: `1970-01-01 00:00:00+0000` for 0. Return
    None for None.
    """
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S%z")


def _csv_cell(value: object) -> object:
    """Return a number or boolean unchanged, and other values as the text of `cell_text`. A text
    that a spreadsheet would run as a formula gets a leading apostrophe.
    """
    if isinstance(value, float | int):
        return value
    text = cell_text(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _visible_columns(widths: dict[Column, int], width: int | None) -> list[Column]:
    """Return the columns that fit into `width`, after dropping columns with a `drop_rank`, highest
    rank first.

    Columns of rank 0 are kept, even if they do not fit. Drop nothing if `width` is None.
    """
    visible = list(widths)
    while width is not None and _line_width([widths[column] for column in visible]) > width:
        least_needed = max(visible, key=lambda column: column.drop_rank)
        if not least_needed.drop_rank:
            break
        visible.remove(least_needed)
    return visible


def _line_width(widths: list[int]) -> int:
    """Return the width of a line: each column has two blanks, and a bar stands between two columns.
    Return -1 without columns.
    """
    return sum(widths) + 3 * len(widths) - 1


def _fit_widths(widths: list[int], width: int | None) -> list[int]:
    """Return widths of columns for a line of at most `width` cells, reducing the widest columns to
    COLUMN_WIDTH_MIN at least.

    The line may stay wider. If `width` is None, the widths are unchanged. The argument is not
    changed.
    """
    fitting_widths = list(widths)
    while width is not None and _line_width(fitting_widths) > width:
        widest = max(range(len(fitting_widths)), key=fitting_widths.__getitem__)
        if fitting_widths[widest] <= COLUMN_WIDTH_MIN:
            break
        fitting_widths[widest] -= 1
    return fitting_widths


def _is_numeric(values: list[object]) -> bool:
    """Return whether a column is numeric: a number is among the values, and all values are numbers
    or None. Booleans count as numbers.
    """
    numbers = [isinstance(value, int | float) for value in values if value is not None]
    return bool(numbers) and all(numbers)


def _render_line(
    cells: list[str], widths: list[int], right: list[bool], colours: list[str | None]
) -> str:
    """Return a line of cells separated by bars, without blanks at the end. Cells that are too wide
    are cut.

    Args:
        cells: the text of each cell.
        widths: the width of each cell.
        right: for each cell, whether to align the text to the right.
        colours: the colour of each cell, or None.
    """
    padded = []
    for text, width, is_right, colour in zip(cells, widths, right, colours, strict=True):
        shortened = truncate(text, width)
        blanks = " " * (width - display_width(shortened))
        aligned = f"{blanks}{shortened}" if is_right else f"{shortened}{blanks}"
        padded.append(colourize(aligned, colour))
    return f" {' | '.join(padded)}".rstrip()
