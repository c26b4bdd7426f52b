"""Charts of characters: curves of braille dots, axes with round numbers, and a legend.

With colours, each of several curves has a colour. Without colours, each curve is drawn with a
letter.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from detcloud.cli.rendering.terminal import (
    colourize,
    display_width,
    has_colour,
    sanitize,
    terminal_width,
    truncate,
)

COLOUR_ORDER = ("cyan", "yellow", "green", "red", "blue", "magenta")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROWS = 16
COLUMNS_MIN = 40
PIPED_COLUMNS = 80
ROWS_PER_TICK = 3
COLUMNS_PER_TICK = 12
# The dots of a braille character (Unicode, 2800 to 28FF) by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800

Point = tuple[float, float]


class Curve(NamedTuple):
    """A curve of a chart: points and a label."""

    label: str
    """The text in the legend."""
    points: Sequence[Point]
    """Points (x, y) with ascending x."""


@dataclass(frozen=True)
class Style:
    """The properties of a terminal that a chart needs, and the scale of the y axis."""

    width: int = 80
    """The number of columns."""
    colour: bool = False
    """Whether to print colours."""
    unicode: bool = True
    """Whether to print characters beyond ASCII."""
    log_y: bool = False
    """Whether the y axis is logarithmic."""


def terminal_style(*, log_y: bool = False) -> Style:
    """Return the style for charts on stdout. Piped output gets PIPED_COLUMNS columns and no
    colours.

    `has_colour` decides whether a terminal gets colours, for example by NO_COLOR. Characters beyond
    ASCII are used if the encoding of stdout is a UTF encoding.

    Args:
        log_y: whether the y axis is logarithmic.
    """
    return Style(
        width=terminal_width(sys.stdout) or PIPED_COLUMNS,
        colour=has_colour(sys.stdout),
        unicode="utf" in (sys.stdout.encoding or "").lower(),
        log_y=log_y,
    )


class Axis(NamedTuple):
    """A range of numbers with ticks."""

    low: float
    """The number at the beginning of the axis."""
    high: float
    """Greater than `low`."""
    ticks: list[float]
    """Round numbers between `low` and `high`, ascending."""

    def fraction(self, value: float) -> float:
        """Return the position of a value in the range: 0 at `low`, 1 at `high`. Values outside the
        range give numbers below 0 or above 1.
        """
        return (value - self.low) / (self.high - self.low)


def render_chart(title: str, curves: Sequence[Curve], style: Style) -> str:
    """Return a chart in several lines: the title, the curves with axes, and a legend if several
    curves have points.

    Points are omitted if they are not finite, or if they are not above 0 on a log scale. Curves
    without points are omitted too. Without any point, return a sentence with the title. The plot
    has at least about COLUMNS_MIN columns, also on a narrower terminal. Control characters of
    labels are replaced, and a long title is cut.
    """
    curves = [Curve(curve.label, list(_drawable_points(curve.points, style))) for curve in curves]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return f"{sanitize(title)}: no numbers to draw"
    heights = [y for curve in curves for _, y in curve.points]
    y_axis = _log_axis(heights) if style.log_y else _axis(heights, ROWS // ROWS_PER_TICK)
    labels = _tick_labels(y_axis, style.log_y)
    gutter = max(map(len, labels))
    columns = max(COLUMNS_MIN, style.width) - gutter - 3
    x_axis = _axis([x for curve in curves for x, _ in curve.points], columns // COLUMNS_PER_TICK)
    rows = _plot_rows(curves, x_axis, y_axis, columns, style)
    return "\n".join(
        [
            f"{' ' * (gutter + 2)}{truncate(sanitize(title), columns)}",
            *_add_y_axis(rows, y_axis, labels, style),
            *_x_axis_lines(x_axis, gutter, columns, style),
            *(_legend_lines(curves, style) if len(curves) > 1 else []),
        ]
    )


def round_numbers(low: float, high: float, count: int) -> list[float]:
    """Return about `count` multiples of 1, 2 or 5 times a power of ten between low and high,
    ascending. The list may be empty.

    Source: Heckbert, "Nice numbers for graph labels", Graphics Gems (1990).

    Args:
        high: greater than `low`; otherwise ValueError is raised.
        count: a count below 1 stands for 1.
    """
    step = _round_step((high - low) / max(1, count))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def _round_step(step: float) -> float:
    """Return the smallest product of 1, 2, 5 or 10 and a power of ten that is at least `step`.

    Args:
        step: above 0; otherwise ValueError is raised.
    """
    power = 10.0 ** math.floor(math.log10(step))
    share = step / power
    return power * next(nice for nice in (1, 2, 5, 10) if share <= nice * (1 + 1e-9))


def _drawable_points(points: Sequence[Point], style: Style) -> Iterator[Point]:
    """Yield the points with finite x and y. On a log scale, yield only points with y above 0, and
    with the base-10 logarithm of y.
    """
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not style.log_y):
            yield x, math.log10(y) if style.log_y else y


def _axis(values: Sequence[float], count: int) -> Axis:
    """Return an axis over all values, with about `count` ticks. Equal values get a range around the
    value.

    Args:
        values: at least one finite value.
    """
    low, high = min(values), max(values)
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        # A single value lies in the middle of a range around it.
        around = abs(low) / 10 or 1.0
        low, high = low - around, high + around
    return Axis(low, high, round_numbers(low, high, count))


def _log_axis(values: Sequence[float]) -> Axis:
    """Return an axis over base-10 logarithms.

    Ticks are powers of ten if the range has at least two powers, otherwise round numbers. Of many
    powers, only every second or a rarer power has a tick. The ticks may be empty.

    Args:
        values: logarithms, at least a single value.
    """
    axis = _axis(values, ROWS // ROWS_PER_TICK)
    powers = [float(power) for power in range(math.ceil(axis.low), math.floor(axis.high) + 1)]
    if len(powers) >= 2:
        stride = math.ceil(len(powers) / (ROWS // 2))
        return Axis(axis.low, axis.high, powers[::stride])
    numbers = round_numbers(10**axis.low, 10**axis.high, ROWS // ROWS_PER_TICK)
    return Axis(axis.low, axis.high, [math.log10(number) for number in numbers if number > 0])


def _tick_labels(axis: Axis, log: bool) -> list[str]:
    """Return a label for each tick. An axis of logarithms without ticks has a single label, for its
    low end; another axis without ticks has none.

    Args:
        log: whether the axis has base-10 logarithms. The labels are then powers.
    """
    if log:
        return [f"{10**tick:.4g}" for tick in axis.ticks] or [f"{10**axis.low:.4g}"]
    step = axis.ticks[1] - axis.ticks[0] if len(axis.ticks) > 1 else axis.high - axis.low
    largest = max(abs(axis.low), abs(axis.high))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if decimals > 6 or largest >= 1e7:
        digits = max(1, math.ceil(math.log10(largest / step) - 1e-9))
        return [f"{tick:.{min(digits, 15)}e}" for tick in axis.ticks]
    return [f"{tick + 0.0:.{decimals}f}" for tick in axis.ticks]


def _plot_rows(
    curves: Sequence[Curve], x_axis: Axis, y_axis: Axis, columns: int, style: Style
) -> list[str]:
    """Return the ROWS rows of the plot, top row first, each `columns` characters wide without
    colours. Where curves meet, the later curve wins.

    Curves are braille dots if the terminal has colours or a single curve exists, and Unicode is
    allowed. Otherwise curves are letters.
    """
    in_braille = style.unicode and (style.colour or len(curves) == 1)
    wide, high = (2 * columns, 4 * ROWS) if in_braille else (columns, ROWS)
    cells: list[list[int]] = [[0] * columns for _ in range(ROWS)]
    owners: list[list[int]] = [[0] * columns for _ in range(ROWS)]
    for number, curve in enumerate(curves):
        spots = [
            (x_axis.fraction(x) * (wide - 1), (1 - y_axis.fraction(y)) * (high - 1))
            for x, y in curve.points
        ]
        for x, y in _line_dots(spots):
            row, column = (y // 4, x // 2) if in_braille else (y, x)
            cells[row][column] |= _DOTS[x % 2][y % 4]
            owners[row][column] = number
    return [
        "".join(
            _plot_cell(cell, owner, in_braille, style) for cell, owner in zip(*pair, strict=True)
        )
        for pair in zip(cells, owners, strict=True)
    ]


def _plot_cell(dots: int, owner: int, in_braille: bool, style: Style) -> str:
    """Return the character of a cell: a blank, a letter, or a braille character in the curve's
    colour.

    Args:
        dots: the dots of the cell as a bit mask; 0 for a blank.
        owner: the number of the curve that was drawn last in the cell.
        in_braille: whether curves are braille dots rather than letters.
    """
    if not dots:
        return " "
    if not in_braille:
        return LETTERS[owner % len(LETTERS)]
    return colourize(chr(_BRAILLE + dots), _colour(owner) if style.colour else None)


def _line_dots(spots: Sequence[Point]) -> Iterator[tuple[int, int]]:
    """Yield the dots of the straight lines between consecutive spots, as column and row. A dot may
    be repeated. A single spot yields its own dot.
    """
    for (x0, y0), (x1, y1) in zip(spots, spots[1:] or spots, strict=False):
        steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps + 1):
            share = step / steps
            yield round(x0 + share * (x1 - x0)), round(y0 + share * (y1 - y0))


def _add_y_axis(rows: list[str], axis: Axis, labels: list[str], style: Style) -> Iterator[str]:
    """Yield the rows of the plot with the y axis and labels on the left. Blanks at the ends of
    lines are removed.

    Args:
        rows: the ROWS rows of the plot, top row first.
        axis: the y axis. Of two ticks in a row, the later tick has the label.
        labels: a label for each tick of `axis`, at least one label.
    """
    bar, tick = ("│", "┤") if style.unicode else ("|", "+")
    gutter = max(map(len, labels))
    labels_by_row = {
        round((1 - axis.fraction(value)) * (ROWS - 1)): label
        for value, label in zip(axis.ticks, labels, strict=False)
    }
    for number, row in enumerate(rows):
        label = labels_by_row.get(number)
        yield f"{label or '':>{gutter}} {tick if label else bar}{row}".rstrip()


def _x_axis_lines(axis: Axis, gutter: int, columns: int, style: Style) -> list[str]:
    """Return the x axis and the line with labels, two lines. Labels that would overlap are omitted.

    Args:
        gutter: the width of the labels of the y axis.
        columns: the width of the plot.
    """
    line, tick, corner = ("─", "┬", "└") if style.unicode else ("-", "+", "+")
    rule = [line] * columns
    below = [" "] * (columns + 1)
    free = 0
    for value, label in zip(axis.ticks, _tick_labels(axis, log=False), strict=True):
        place = round(axis.fraction(value) * (columns - 1))
        start = min(max(0, place - len(label) // 2), columns - len(label))
        rule[place] = tick
        if start >= free:
            below[start : start + len(label)] = label
            free = start + len(label) + 1
    indent = " " * (gutter + 1)
    return [f"{indent}{corner}{''.join(rule)}", f"{indent} {''.join(below)}".rstrip()]


def _legend_lines(curves: Sequence[Curve], style: Style) -> Iterator[str]:
    """Yield lines for example with `a trial 7 b trial 9`, each with the most curves that fit into
    the width.

    With colours, a coloured line, or without Unicode a coloured letter, stands before the label.
    Long labels are cut, and control characters are replaced.

    Args:
        curves: at least one curve.
    """
    line, used = "", 0
    for number, curve in enumerate(curves):
        mark = "──" if style.colour and style.unicode else LETTERS[number % len(LETTERS)]
        label = truncate(sanitize(curve.label), max(8, style.width - 6))
        size = display_width(mark) + display_width(label) + 4
        if used and used + size > style.width:
            yield line
            line, used = "", 0
        line += f"  {colourize(mark, _colour(number) if style.colour else None)} {label}"
        used += size
    yield line


def _colour(number: int) -> str:
    """Return the name of the colour of a curve. The colours of COLOUR_ORDER repeat."""
    return COLOUR_ORDER[number % len(COLOUR_ORDER)]
