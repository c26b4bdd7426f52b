"""`detcloud simulate`: runs a search in virtual time.

The server's actors run in a child process.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detcloud.cli.commands.experiment import read_curves
from detcloud.cli.framework.argument_types import parse_count, parse_id, parse_seconds
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import USAGE
from detcloud.cli.framework.failures import report_failure
from detcloud.cli.framework.options import add_overrides_option
from detcloud.cli.framework.session import connect
from detcloud.cli.local.config_checker import InvalidConfigError, check_file_with_progress
from detcloud.cli.rendering.chart import Curve, Point, render_chart, terminal_style
from detcloud.cli.rendering.chart_image import write_png
from detcloud.cli.rendering.conditions import condition_text
from detcloud.cli.rendering.output import add_output_options, print_record, print_value
from detcloud.cli.rendering.spot_report import render_spot_report
from detcloud.cli.rendering.table import Column, Item, cell_text
from detcloud.shared.plurals import count_text

MODULE = "simulator.search"


def add_simulate_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `simulate_search`: the path FILE, `--slots`, the source of curves, the
    deadline, `--config`, `--plot` and the output form (`--json` or `--yaml`).

    `--slots` is required, and `--seed` is 0 by default. `--curves` and `--experiment` exclude each
    other. `--plot` is stored as `png`.
    """
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument(
        "--slots",
        type=parse_count,
        required=True,
        metavar="N",
        help="slots of the simulated cluster",
    )
    curves = parser.add_mutually_exclusive_group()
    curves.add_argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="use recorded curves, as printed by `detcloud experiment curves`",
    )
    curves.add_argument(
        "--experiment",
        type=parse_id,
        metavar="ID",
        help="use the curves of this experiment's trials",
    )
    parser.add_argument(
        "--seed",
        type=parse_count,
        default=0,
        metavar="N",
        help="the seed of generated curves, and of searches without a seed (default: 0)",
    )
    parser.add_argument(
        "--seconds-per-unit",
        type=parse_seconds,
        metavar="SECONDS",
        help="training time of a step, batch, record or epoch (the unit of the configuration) for"
        " curves without recorded times (default: 1 for generated curves)",
    )
    _add_deadline_options(parser)
    add_overrides_option(parser)
    parser.add_argument(
        "--plot", "--png", dest="png", type=Path, metavar="FILE", help="draw the chart into a file"
    )
    add_output_options(parser, csv=False)


def simulate_search(arguments: Namespace) -> int:
    """Simulate the search of a configuration file, and print the result, a chart and the spot
    report.

    The spot report needs `--spot-availability` or `--spot-trace`, and a deadline in the options or
    the configuration. With `--json` or `--yaml`, only the result is printed. With `--plot FILE`,
    first draw the chart into a file, replacing an existing file, and print the path to stderr. A
    cluster is used only with `--experiment`, to fetch the training curves of an experiment. Return
    0, or USAGE if the configuration or an option was refused. The refusal is printed to stderr.

    Raises:
        DetcloudError: the simulation failed, the server or matplotlib is not installed, no cluster
            is available for `--experiment`, or a request failed.
        OSError: the file of `--plot` cannot be written.
    """
    try:
        with _curves_file(arguments) as curves:
            result = _run_simulation(arguments, curves)
    except InvalidConfigError as error:
        report_failure(error)
        return USAGE
    title = f"best {result['metric']} by {_time_unit(result)[1]}"
    best_curve = [Curve(result["searcher"], _best_points(result))]
    if arguments.png is not None:
        write_png(arguments.png, [(title, best_curve)], x_label=_time_unit(result)[1])
        print(arguments.png, file=sys.stderr)
    if arguments.form != "text":
        print_value(result, arguments.form)
        return 0
    print_record(COLUMNS, result, arguments)
    print(f"\n{render_chart(title, best_curve, terminal_style())}")
    if "spot" in result:
        print(f"\n{render_spot_report(result['spot'])}")
    return 0


def _add_deadline_options(parser: ArgumentParser) -> None:
    """Add `--deadline`, `--spot-availability`, `--spot-trace` and `--changeover-seconds`. All are
    None by default.

    Availability and trace exclude each other. The parser does not check the form of the deadline or
    the range of the availability. The simulation refuses a deadline without availability or trace,
    and availability or trace without a deadline in the options or the configuration.
    """
    parser.add_argument(
        "--deadline",
        metavar="DURATION",
        help="a deadline such as 6h, to estimate the savings of spot machines (default: the"
        " configuration's resources.deadline)",
    )
    market = parser.add_mutually_exclusive_group()
    market.add_argument(
        "--spot-availability",
        type=float,
        metavar="SHARE",
        help="generate a zone that has spot machines for this share of the time, 0 to 1",
    )
    market.add_argument(
        "--spot-trace",
        type=Path,
        metavar="FILE",
        help="a JSON file with the times of available spot machines",
    )
    parser.add_argument(
        "--changeover-seconds",
        type=parse_seconds,
        metavar="SECONDS",
        help="seconds from the request for a machine until work resumes (default: 300)",
    )


@contextmanager
def _curves_file(arguments: Namespace) -> Iterator[Path | None]:
    """Provide the file with recorded curves during the block, or `None` for generated curves.

    With `--experiment`, the curves are fetched with a progress line into a temporary file, which is
    deleted at the end. With `--curves`, the file is the user's file, which is not checked.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or another
            request failed.
    """
    if arguments.experiment is None:
        yield arguments.curves
        return
    experiment = connect(arguments).experiment(arguments.experiment)
    recorded = read_curves(experiment)
    with TemporaryDirectory(prefix="detcloud-curves-") as folder:
        path = Path(folder) / f"experiment-{experiment.id}.json"
        path.write_text(json.dumps(recorded), encoding="utf-8")
        yield path


def _run_simulation(arguments: Namespace, curves: Path | None) -> dict[str, Any]:
    """Run the simulation in a child process with a progress line, and return the result. The wait
    has no limit.

    Args:
        curves: the file with recorded curves; None for generated curves.

    Raises:
        InvalidConfigError: the configuration has problems.
        DetcloudError: the simulation failed, or the server is not installed.
    """
    flags = [f"--slots={arguments.slots}", f"--seed={arguments.seed}"]
    if curves is not None:
        flags.append(f"--curves={curves}")
    if arguments.seconds_per_unit is not None:
        flags.append(f"--seconds-per-unit={arguments.seconds_per_unit}")
    for name in ("deadline", "spot_availability", "spot_trace", "changeover_seconds"):
        if (value := getattr(arguments, name)) is not None:
            flags.append(f"--{name.replace('_', '-')}={value}")
    report = check_file_with_progress(
        "simulating", arguments.file, arguments.overrides, *flags, module=MODULE
    )
    simulation: dict[str, Any] = report["simulation"]
    return simulation


def _time_unit(result: Item) -> tuple[float, str]:
    """Return the seconds and the name of the largest unit of which the makespan has at least three.
    Makespans below three minutes are in seconds.
    """
    for size, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if result["makespan_seconds"] >= 3 * size:
            return size, name
    return 1.0, "seconds"


def _time_text(result: Item, at_seconds: float) -> str:
    """Return a time in the unit of the makespan with four significant digits, for example `27.05
    seconds`.
    """
    size, name = _time_unit(result)
    return f"{at_seconds / size:.4g} {name}"


def _best_points(result: Item) -> list[Point]:
    """Return the curve of the best metric over time as a staircase, in the unit of the makespan.

    The curve extends to the end of the search. The list is empty without a metric.
    """
    size, _ = _time_unit(result)
    points: list[Point] = []
    for at_seconds, metric in result["best"]:
        if points:
            points.append((at_seconds / size, points[-1][1]))
        points.append((at_seconds / size, metric))
    if points:
        points.append((result["makespan_seconds"] / size, points[-1][1]))
    return points


def _cluster_text(result: Item) -> str:
    """Return the slots of the simulated cluster, the slots of a trial, and the used share in
    percent.

    For example `8 slots, 2 per trial; 93.1 % used`.
    """
    each = result["slots_per_trial"]
    slots = count_text(result["slots"], "slot")
    return f"{slots}, {each} per trial; {100 * result['slot_use']:.1f} % used"


def _trained_text(result: Item) -> str:
    """Return the training of all trials in the unit of the search, for example `640 batches`.

    For units other than batches, the number of batches follows in parentheses.
    """
    amount = f"{round(result['units'], 2):.10g} {result['unit']}"
    batches = count_text(result["batches"], "batch", "batches")
    return amount if result["unit"] == "batches" else f"{amount} ({batches})"


def _best_text(result: Item) -> str | None:
    """Return the best metric with the trial and the time. Return None if no trial reported the
    metric.
    """
    if not result["best"]:
        return None
    at_seconds, metric = result["best"][-1]
    trial = f"by trial {result['best_trial']} after {_time_text(result, at_seconds)}"
    return f"{cell_text(result['metric'])} {metric:.6g} {trial}"


def _curves_text(result: Item) -> str:
    """Return the source of the learning curves: `generated`, or how well recorded curves match the
    simulated trials.
    """
    curves = result["curves"]
    if curves["kind"] == "synthetic":
        return "generated"
    return (
        f"from {curves['followed']} of {count_text(curves['trials'], 'recorded trial')};"
        f" {curves['exact']} of {count_text(result['trials'], 'simulated trial')} with identical"
        f" hyperparameters; {100 * curves['share_beyond']:.3g} % of the batches after the end of"
        " a recorded curve, with its last metric"
    )


COLUMNS = (
    Column("Searcher", lambda result: result["searcher"]),
    Column("Cluster", _cluster_text),
    Column("Makespan", lambda result: _time_text(result, result["makespan_seconds"])),
    Column("Trials", lambda result: result["trials"]),
    Column("Trained", _trained_text),
    Column("Best", _best_text),
    Column("Curves", _curves_text),
    Column("Ended", condition_text),
)


HANDLERS: Handlers = {
    "simulate": Handler(add_simulate_arguments, simulate_search),
}
