"""Tables for lists: aligned text, or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from detcloud.cli.terminal import (
    STATE_COLOURS,
    cells_of,
    clean,
    cut,
    painted,
)

Item = dict[str, Any]

MISSING = "N/A"
COLUMN_WIDTH_MIN = 8
GIST_CELLS = 400
_FORMULA_STARTS = ("=", "+", "-", "@")


class Column(NamedTuple):
    """A title and what of an item stands below it: a number, a text, or None for N/A.

    Where a line is too narrow for all columns, those with a rank in `spare` go, the highest first.
    """

    title: str
    value: Callable[[Item], object]
    spare: int = 0


def field(title: str, name: str, spare: int = 0) -> Column:
    """A column that shows one field as it is."""
    return Column(title, lambda item: item.get(name), spare)


def time_column(title: str, name: str, spare: int = 0) -> Column:
    return Column(title, lambda item: time_text(item.get(name)), spare)


def text_table(
    columns: Sequence[Column], items: Sequence[Item], width: int | None, colour: bool = False
) -> str:
    """Columns aligned, numbers to the right.

    Until a line fits `width`, spare columns are left out and then the widest are cut.
    """
    values = {column: [column.value(item) for item in items] for column in columns}
    cells = {column: list(map(cell_text, values[column])) for column in columns}
    widths = {column: max(map(cells_of, (column.title, *cells[column]))) for column in columns}
    shown = _shown(widths, width)
    titles = [column.title for column in shown]
    fitted = _fitted([widths[column] for column in shown], width)
    right = [_is_numeric(values[column]) for column in shown]
    rows = [[cells[column][place] for column in shown] for place in range(len(items))]
    lines = [
        _line(titles, fitted, [False] * len(shown), False),
        "+".join("-" * (size + 2) for size in fitted),
        *(_line(row, fitted, right, colour) for row in rows),
    ]
    return "\n".join(lines)


def csv_text(columns: Sequence[Column], items: Sequence[Item]) -> str:
    """RFC 4180 with a title line; text that a spreadsheet would run gets an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(column.title for column in columns)
    for item in items:
        writer.writerow(_csv_cell(column.value(item)) for column in columns)
    return file.getvalue()


def cell_text(value: object) -> str:
    if value is None or value == "" or value == []:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        return clean(json.dumps(value, ensure_ascii=False))
    return clean(str(value))


def gist_text(message: str) -> str:
    """The first and the last line of a message, which may quote a log between them."""
    lines = message.strip().splitlines()
    return cut(cell_text(message if len(lines) < 3 else f"{lines[0]} {lines[-1]}"), GIST_CELLS)


def time_text(time_ms: int | None) -> str | None:
    """0 -> '1970-01-01 00:00:00+0000'."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S%z")


def _csv_cell(value: object) -> object:
    if isinstance(value, float | int):
        return value
    text = cell_text(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _shown(widths: dict[Column, int], width: int | None) -> list[Column]:
    shown = list(widths)
    while width is not None and _line_cells([widths[column] for column in shown]) > width:
        sparest = max(shown, key=lambda column: column.spare)
        if not sparest.spare:
            break
        shown.remove(sparest)
    return shown


def _line_cells(widths: list[int]) -> int:
    """A column of n characters takes n + 2 and one for the bar between two columns."""
    return sum(widths) + 3 * len(widths) - 1


def _fitted(widths: list[int], width: int | None) -> list[int]:
    fitted = list(widths)
    while width is not None and _line_cells(fitted) > width:
        widest = max(range(len(fitted)), key=fitted.__getitem__)
        if fitted[widest] <= COLUMN_WIDTH_MIN:
            break
        fitted[widest] -= 1
    return fitted


def _is_numeric(values: list[object]) -> bool:
    numbers = [isinstance(value, int | float) for value in values if value is not None]
    return bool(numbers) and all(numbers)


def _line(cells: list[str], widths: list[int], right: list[bool], colour: bool) -> str:
    padded = []
    for text, width, is_right in zip(cells, widths, right, strict=True):
        kept = cut(text, width)
        blanks = " " * (width - cells_of(kept))
        aligned = f"{blanks}{kept}" if is_right else f"{kept}{blanks}"
        padded.append(painted(aligned, STATE_COLOURS.get(text) if colour else None))
    return f" {' | '.join(padded)}".rstrip()
