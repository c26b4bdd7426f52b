"""`detcloud metrics`: numbers, points and charts of a trial or of an experiment's best trials."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import (
    add_experiment_argument,
    add_trial_argument,
    load_experiment,
    load_trial,
)
from detcloud.cli.rendering.chart import Curve, render_chart, terminal_style
from detcloud.cli.rendering.chart_image import write_png
from detcloud.cli.rendering.columns import METRIC_SUMMARY_COLUMNS
from detcloud.cli.rendering.deleted_data import note_deleted_metrics
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, field_column
from detcloud.client import Trial
from detcloud.client.records import Series
from detcloud.shared.errors import DetcloudError

POINT_COLUMNS = (
    field_column("Trial", "trial_id"),
    field_column("Group", "group"),
    field_column("Name", "name"),
    field_column("Steps", "steps"),
    field_column("Value", "value"),
)
RANK_COLUMNS = (field_column("Trial", "trial_id"), field_column("Rank", "rank"))
CURVE_COLUMNS = (
    field_column("Trial", "trial_id"),
    Column("Last steps", lambda item: item["points"][-1][0] if item["points"] else None),
    Column("Last", lambda item: item["points"][-1][1] if item["points"] else None),
    Column("Minimum", lambda item: min((value for _, value in item["points"]), default=None)),
    Column("Maximum", lambda item: max((value for _, value in item["points"]), default=None)),
    field_column("Points", "total"),
)

Plots = list[tuple[str, list[Curve]]]


def add_trial_metrics_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_trial_metrics`: TRIAL, `--name`, repeatable, `--group`, `--rank`,
    and the options for charts and output.
    """
    add_trial_argument(parser)
    parser.add_argument(
        "--name", action="append", default=[], help="only this metric; may be repeated"
    )
    parser.add_argument("--group", help="only this group, such as training or validation")
    parser.add_argument(
        "--rank",
        type=parse_count,
        metavar="N",
        help="metrics that the process with this rank reported separately, with all points",
    )
    _add_chart_options(parser, 500)


def show_trial_metrics(arguments: Namespace) -> int:
    """Print summaries of a trial's metrics, and return 0. `--rank`, `--plot`, `--png` and forms
    other than text use the points of the curves instead.

    As text, `--rank` prints a table of the rank's points, and `--plot` prints charts. CSV has a row
    for each point. JSON and YAML have the curves. With `--png`, a file is written, an existing file
    is replaced, and the file's path is printed to stderr. `--name` and `--group` limit the metrics.
    Without metrics, print an empty table or list, or a sentence with `--plot`. A note on stderr
    tells if detailed metrics were deleted after their retention.

    Raises:
        DetcloudError: `--rank` and `--points` were combined, or with `--png` matplotlib is missing
            or no metric exists. Or no cluster is available, the cluster has no such trial, or
            another request failed.
        OSError: the file of `--png` cannot be written.
    """
    trial = load_trial(arguments)
    note_deleted_metrics([trial.data])
    if arguments.rank is None and not _needs_points(arguments):
        items = [
            {**summary}
            for summary in trial.metric_summaries()
            if arguments.group in (None, summary["group"])
            and (not arguments.name or summary["name"] in arguments.name)
        ]
        print_items(METRIC_SUMMARY_COLUMNS, items, arguments)
        return 0
    is_of_rank = arguments.rank is not None
    series = (_fetch_rank_series if is_of_rank else _fetch_trial_series)(trial, arguments)
    names = dict.fromkeys(curve["name"] for curve in series)
    plots: Plots = [
        (
            f"trial {trial.id}: {name} by steps",
            [Curve(curve["group"], curve["points"]) for curve in series if curve["name"] == name],
        )
        for name in names
    ]
    points = [
        _point_item(trial.id, curve["group"], curve["name"], point)
        for curve in series
        for point in curve["points"]
    ]
    if not _needs_points(arguments):
        print_items(POINT_COLUMNS, points, arguments)
        return 0
    _print_metrics(plots, points, {"trial_id": trial.id, "series": series}, arguments)
    return 0


def add_ranks_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_metric_ranks`: TRIAL and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    add_trial_argument(parser)
    add_output_options(parser)


def list_metric_ranks(arguments: Namespace) -> int:
    """Print a trial's ranks with separate metrics as text, CSV, JSON or YAML, and return 0. `trial
    metrics --rank` accepts these ranks.

    The list is empty if no rank reported separately.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or another request
            failed.
    """
    trial = load_trial(arguments)
    items = [{"trial_id": trial.id, "rank": rank} for rank in trial.metric_ranks()]
    print_items(RANK_COLUMNS, items, arguments)
    return 0


def add_experiment_metrics_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `show_experiment_metrics`: EXPERIMENT, `--name`, `--group`, `--trials`,
    and the options for charts and output. The cluster has the defaults.
    """
    add_experiment_argument(parser)
    parser.add_argument("--name", help="the metric (default: the searcher's)")
    parser.add_argument("--group", help="the metric's group (default: validation)")
    parser.add_argument(
        "--trials", type=parse_count, metavar="N", help="how many of the best trials (default: 10)"
    )
    _add_chart_options(parser, 200)


def show_experiment_metrics(arguments: Namespace) -> int:
    """Print a row with last value, minimum and maximum of a metric for each of the best trials of
    an experiment. Return 0.

    `--plot` prints a chart instead. CSV has a row for each point, and JSON and YAML have the
    curves. With `--png`, a file is written, an existing file is replaced, and the file's path is
    printed to stderr. Without values, the table has only titles, and `--plot` prints a sentence.

    Raises:
        DetcloudError: matplotlib is missing for `--png`, no cluster is available, or the cluster
            refuses the request.
        OSError: the file of `--png` cannot be written.
    """
    experiment = load_experiment(arguments)
    if experiment.data.get("metrics_deleted_ms"):
        note_deleted_metrics(trial.data for trial in experiment.trials())
    metrics = experiment.metrics(
        arguments.name,
        group=arguments.group,
        points_max=arguments.points,
        trials_max=arguments.trials,
    )
    if not _needs_points(arguments):
        print_items(CURVE_COLUMNS, [{**curve} for curve in metrics["series"]], arguments)
        return 0
    curves = [Curve(f"trial {curve['trial_id']}", curve["points"]) for curve in metrics["series"]]
    title = f"experiment {experiment.id}: {metrics['group']} {metrics['name']} by steps"
    points = [
        _point_item(curve["trial_id"], metrics["group"], metrics["name"], point)
        for curve in metrics["series"]
        for point in curve["points"]
    ]
    _print_metrics([(title, curves)], points, metrics, arguments)
    return 0


def _add_chart_options(parser: ArgumentParser, points: int) -> None:
    """Add `--points`, `--plot`, `--png`, `--log` and the options of `add_output_options`.
    `--points` and `--png` are None by default, `--plot` and `--log` False.

    Args:
        points: the default of the cluster, which the help of `--points` shows.
    """
    parser.add_argument(
        "--points",
        type=parse_count,
        metavar="N",
        help=f"the maximum number of points per curve (default: {points})",
    )
    parser.add_argument("--plot", action="store_true", help="draw a chart in the terminal")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw a chart into this file")
    parser.add_argument("--log", action="store_true", help="use a logarithmic scale")
    add_output_options(parser)


def _needs_points(arguments: Namespace) -> bool:
    """Return whether the options need points of curves rather than summaries: charts, and all forms
    but text.
    """
    return bool(arguments.plot or arguments.png or arguments.form != "text")


def _fetch_trial_series(trial: Trial, arguments: Namespace) -> list[Series]:
    """Fetch the requested curves of a trial, in all groups unless `--group` is given. Empty without
    metrics.

    `--points` limits the points of a curve, and `--name` limits the metrics. Each group needs a
    request. Without `--group`, a request for the names of the groups comes first.

    Raises:
        DetcloudError: a request failed, for example for a number of points that the cluster does
            not accept.
    """
    groups = [arguments.group]
    if arguments.group is None:
        groups = list(dict.fromkeys(summary["group"] for summary in trial.metric_summaries()))
    return [
        curve
        for group in groups
        for curve in trial.series(arguments.name, group=group, points_max=arguments.points)
    ]


def _fetch_rank_series(trial: Trial, arguments: Namespace) -> list[Series]:
    """Fetch the numbers that a rank reported separately, as a curve with all points for each group
    and name.

    Values other than numbers are skipped. `--group` and `--name` limit the curves. The result is
    empty without reports of the rank.

    Raises:
        DetcloudError: `--points` was given, which only applies to the trial's own curves. Or a
            request failed.
    """
    if arguments.points is not None:
        raise DetcloudError(
            "--points downsamples the trial's own curves: it cannot be used with --rank"
        )
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for report in trial.metrics(arguments.group, rank=arguments.rank):
        for name, value in report["metrics"].items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and (not arguments.name or name in arguments.name):
                of_name = points.setdefault((report["group"], name), [])
                of_name.append((report["steps_completed"], value))
    return [
        Series(group=group, name=name, points=curve_points, total=len(curve_points))
        for (group, name), curve_points in points.items()
    ]


def _print_metrics(
    plots: Sequence[tuple[str, Sequence[Curve]]],
    points: list[dict[str, Any]],
    document: object,
    arguments: Namespace,
) -> None:
    """Write the chart of `--png`, and print CSV, the document, or the charts of `--plot` to stdout.

    An existing PNG file is replaced, and its path is printed to stderr. As text without `--plot`,
    nothing else is printed. Without plots, `--plot` prints a sentence.

    Args:
        plots: the title and the curves of each chart.
        points: a row for each point, for CSV.
        document: the value for JSON and YAML.

    Raises:
        DetcloudError: with `--png`, matplotlib is not installed, or `plots` is empty.
        OSError: the file of `--png` cannot be written.
    """
    if arguments.png is not None:
        write_png(arguments.png, plots, log_y=arguments.log)
        print(arguments.png, file=sys.stderr)
    if arguments.form == "csv":
        print_items(POINT_COLUMNS, points, arguments)
    elif arguments.form != "text":
        print_value(document, arguments.form)
    elif arguments.plot:
        style = terminal_style(log_y=arguments.log)
        charts = [render_chart(title, curves, style) for title, curves in plots]
        print("\n\n".join(charts) or "no numbers to draw: the metrics have no values yet")


def _point_item(trial_id: int, group: str, name: str, point: tuple[int, float]) -> dict[str, Any]:
    """Return the fields of a point for POINT_COLUMNS.

    Args:
        point: the number of steps and the value.
    """
    return {
        "trial_id": trial_id,
        "group": group,
        "name": name,
        "steps": point[0],
        "value": point[1],
    }


HANDLERS: Handlers = {
    "trial metrics": Handler(add_trial_metrics_arguments, show_trial_metrics),
    "trial ranks": Handler(add_ranks_arguments, list_metric_ranks),
    "experiment metrics": Handler(add_experiment_metrics_arguments, show_experiment_metrics),
}
