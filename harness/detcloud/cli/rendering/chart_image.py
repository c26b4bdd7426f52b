"""Charts as PNG files, drawn by matplotlib, which the extra [plot] installs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from detcloud.cli.rendering.chart import Curve
from detcloud.cli.rendering.terminal import sanitize
from detcloud.shared.errors import DetcloudError

INCHES = (8.0, 4.5)
DOTS_PER_INCH = 120


def write_png(
    path: Path,
    plots: Sequence[tuple[str, Sequence[Curve]]],
    *,
    log_y: bool = False,
    x_label: str = "steps",
) -> None:
    """Draw plots below each other into a PNG file. An existing file is replaced. A plot without
    curves or points is drawn empty.

    Args:
        plots: the title and the curves of each plot.
        log_y: whether the y axes are logarithmic.
        x_label: the text below each x axis.

    Raises:
        DetcloudError: matplotlib is not installed, or `plots` is empty.
        OSError: the file cannot be written.
    """
    try:
        # The figure alone needs no display, unlike pyplot.
        figures = import_module("matplotlib.figure")
    except ImportError:
        raise DetcloudError(
            "a PNG file needs matplotlib; run `pip install 'detcloud[plot]'`"
        ) from None
    if not plots:
        raise DetcloudError("no numbers to draw: the metrics have no values yet")
    width, height = INCHES
    figure = figures.Figure(
        figsize=(width, height * len(plots)), dpi=DOTS_PER_INCH, layout="constrained"
    )
    for place, (title, curves) in enumerate(plots):
        axes = figure.add_subplot(len(plots), 1, place + 1)
        for label, points in curves:
            axes.plot([x for x, _ in points], [y for _, y in points], label=_escape_formula(label))
        axes.set(title=_escape_formula(title), xlabel=x_label, yscale="log" if log_y else "linear")
        if len(curves) > 1:
            axes.legend(fontsize="small")
    figure.savefig(path, format="png")


def _escape_formula(text: str) -> str:
    """Return a text without control characters and with escaped dollars, because matplotlib reads
    `$` as the start of a formula.
    """
    return sanitize(text).replace("$", r"\$")
