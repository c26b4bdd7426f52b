"""Metrics of a trial or of an experiment's best trials: numbers, points and charts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcloud.cli.chart import Curve, Style, chart
from detcloud.cli.experiment import experiment_argument, experiment_of
from detcloud.cli.options import count
from detcloud.cli.output import add_output_options, print_items, print_value
from detcloud.cli.table import Column, field
from detcloud.cli.terminal import has_colour, width_of
from detcloud.cli.trial import SUMMARY_COLUMNS, trial_argument, trial_of
from detcloud.client import Trial
from detcloud.client.records import Series

PIPED_COLUMNS = 80

POINT_COLUMNS = (
    field("Trial", "trial_id"),
    field("Group", "group"),
    field("Name", "name"),
    field("Steps", "steps"),
    field("Value", "value"),
)
CURVE_COLUMNS = (
    field("Trial", "trial_id"),
    Column("Last steps", lambda item: item["points"][-1][0] if item["points"] else None),
    Column("Last", lambda item: item["points"][-1][1] if item["points"] else None),
    Column("Minimum", lambda item: min((value for _, value in item["points"]), default=None)),
    Column("Maximum", lambda item: max((value for _, value in item["points"]), default=None)),
    field("Points", "total"),
)

Plots = list[tuple[str, list[Curve]]]


def trial_metrics_arguments(parser: ArgumentParser) -> None:
    trial_argument(parser)
    parser.add_argument(
        "--name", action="append", default=[], help="only this metric; may be repeated"
    )
    parser.add_argument("--group", help="only this group, such as training or validation")
    _options(parser, 500)


def trial_metrics(arguments: Namespace) -> int:
    trial = trial_of(arguments)
    if not _wants_points(arguments):
        found = [
            {**summary}
            for summary in trial.metric_summaries()
            if arguments.group in (None, summary["group"])
            and (not arguments.name or summary["name"] in arguments.name)
        ]
        print_items(SUMMARY_COLUMNS, found, arguments)
        return 0
    series = _trial_series(trial, arguments)
    names = dict.fromkeys(one["name"] for one in series)
    plots: Plots = [
        (
            f"trial {trial.id}: {name} by steps",
            [Curve(one["group"], one["points"]) for one in series if one["name"] == name],
        )
        for name in names
    ]
    points = [
        _point(trial.id, one["group"], one["name"], point)
        for one in series
        for point in one["points"]
    ]
    _show(plots, points, {"trial_id": trial.id, "series": series}, arguments)
    return 0


def experiment_metrics_arguments(parser: ArgumentParser) -> None:
    experiment_argument(parser)
    parser.add_argument("--name", help="the metric (default: the searcher's)")
    parser.add_argument("--group", help="its group (default: validation)")
    parser.add_argument(
        "--trials", type=count, metavar="N", help="so many of the best trials (default: 10)"
    )
    _options(parser, 200)


def experiment_metrics(arguments: Namespace) -> int:
    experiment = experiment_of(arguments)
    found = experiment.metrics(
        arguments.name,
        group=arguments.group,
        points_max=arguments.points,
        trials_max=arguments.trials,
    )
    if not _wants_points(arguments):
        print_items(CURVE_COLUMNS, [{**one} for one in found["series"]], arguments)
        return 0
    curves = [Curve(f"trial {one['trial_id']}", one["points"]) for one in found["series"]]
    title = f"experiment {experiment.id}: {found['group']} {found['name']} by steps"
    points = [
        _point(one["trial_id"], found["group"], found["name"], point)
        for one in found["series"]
        for point in one["points"]
    ]
    _show([(title, curves)], points, found, arguments)
    return 0


def _options(parser: ArgumentParser, points: int) -> None:
    parser.add_argument(
        "--points",
        type=count,
        metavar="N",
        help=f"at most so many points for a curve (default: {points})",
    )
    parser.add_argument("--plot", action="store_true", help="draw a chart here")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw a chart into this file")
    parser.add_argument("--log", action="store_true", help="draw on a logarithmic scale")
    add_output_options(parser)


def _wants_points(arguments: Namespace) -> bool:
    return bool(arguments.plot or arguments.png or arguments.form != "text")


def _trial_series(trial: Trial, arguments: Namespace) -> list[Series]:
    """The curves asked for, of every group that has them unless one is named."""
    groups = [arguments.group]
    if arguments.group is None:
        groups = list(dict.fromkeys(found["group"] for found in trial.metric_summaries()))
    return [
        one
        for group in groups
        for one in trial.series(arguments.name, group=group, points_max=arguments.points)
    ]


def _show(
    plots: Sequence[tuple[str, Sequence[Curve]]],
    points: list[dict[str, Any]],
    document: object,
    arguments: Namespace,
) -> None:
    if arguments.png is not None:
        from detcloud.cli.picture import write_png

        write_png(arguments.png, plots, log_y=arguments.log)
        print(arguments.png, file=sys.stderr)
    if arguments.form == "csv":
        print_items(POINT_COLUMNS, points, arguments)
    elif arguments.form != "text":
        print_value(document, arguments.form)
    elif arguments.plot:
        style = terminal_style(log_y=arguments.log)
        print("\n\n".join(chart(title, curves, style) for title, curves in plots))


def terminal_style(*, log_y: bool = False) -> Style:
    """What charts on stdout can show."""
    return Style(
        width=width_of(sys.stdout) or PIPED_COLUMNS,
        colour=has_colour(sys.stdout),
        unicode="utf" in (sys.stdout.encoding or "").lower(),
        log_y=log_y,
    )


def _point(trial_id: int, group: str, name: str, point: tuple[int, float]) -> dict[str, Any]:
    return {
        "trial_id": trial_id,
        "group": group,
        "name": name,
        "steps": point[0],
        "value": point[1],
    }
