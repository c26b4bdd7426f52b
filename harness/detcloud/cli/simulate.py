"""Runs a search in virtual time, with the server's own actors in a child process."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from detcloud.cli.chart import Curve, Point, chart
from detcloud.cli.commands import USAGE
from detcloud.cli.config import FileRefused, checked_slowly, overrides_argument
from detcloud.cli.experiment import read_curves
from detcloud.cli.failures import report
from detcloud.cli.metrics import terminal_style
from detcloud.cli.options import count, identifier, seconds
from detcloud.cli.output import add_output_options, print_record, print_value
from detcloud.cli.session import client_of
from detcloud.cli.spot_courses import spot_text
from detcloud.cli.table import Column, Item, cell_text
from detcloud.cli.terminal import counted

MODULE = "control_plane.simulation"


def simulate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument(
        "--slots", type=count, required=True, metavar="N", help="slots of the simulated cluster"
    )
    curves = parser.add_mutually_exclusive_group()
    curves.add_argument(
        "--curves",
        type=Path,
        metavar="FILE",
        help="follow these, as `detcloud experiment curves` prints them",
    )
    curves.add_argument(
        "--experiment", type=identifier, metavar="ID", help="follow the trials of this experiment"
    )
    parser.add_argument(
        "--seed",
        type=count,
        default=0,
        metavar="N",
        help="of curves that are made up, and of a search without one (default: 0)",
    )
    parser.add_argument(
        "--seconds-per-unit",
        type=seconds,
        metavar="SECONDS",
        help="training time of a step, batch, record or epoch, as the configuration counts, where"
        " none was recorded (default: 1 where curves are made up)",
    )
    _deadline_arguments(parser)
    overrides_argument(parser)
    parser.add_argument(
        "--plot", "--png", dest="png", type=Path, metavar="FILE", help="draw the chart into a file"
    )
    add_output_options(parser, csv=False)


def simulate(arguments: Namespace) -> int:
    try:
        with _curves(arguments) as curves:
            found = _simulated(arguments, curves)
    except FileRefused as error:
        report(error)
        return USAGE
    title = f"best {found['metric']} by {_time_unit(found)[1]}"
    course = [Curve(found["searcher"], _course(found))]
    if arguments.png is not None:
        from detcloud.cli.picture import write_png

        write_png(arguments.png, [(title, course)], x_label=_time_unit(found)[1])
        print(arguments.png, file=sys.stderr)
    if arguments.form != "text":
        print_value(found, arguments.form)
        return 0
    print_record(COLUMNS, found, arguments)
    print(f"\n{chart(title, course, terminal_style())}")
    if "spot" in found:
        print(f"\n{spot_text(found['spot'])}")
    return 0


def _deadline_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--deadline",
        metavar="DURATION",
        help="such as 6h, for what spot machines save (default: the configuration's"
        " resources.deadline)",
    )
    market = parser.add_mutually_exclusive_group()
    market.add_argument(
        "--spot-availability",
        type=float,
        metavar="SHARE",
        help="of the time with spot machines, 0 to 1, in a zone that --seed makes up",
    )
    market.add_argument(
        "--spot-trace", type=Path, metavar="FILE", help="when there were spot machines, as JSON"
    )
    parser.add_argument(
        "--changeover-seconds",
        type=seconds,
        metavar="SECONDS",
        help="from asking for a machine until the work goes on (default: 300)",
    )


@contextmanager
def _curves(arguments: Namespace) -> Iterator[Path | None]:
    """The file of the curves to follow; those of an experiment are read from its cluster."""
    if arguments.experiment is None:
        yield arguments.curves
        return
    experiment = client_of(arguments).experiment(arguments.experiment)
    found = read_curves(experiment)
    with TemporaryDirectory(prefix="detcloud-curves-") as folder:
        path = Path(folder) / f"experiment-{experiment.id}.json"
        path.write_text(json.dumps(found), encoding="utf-8")
        yield path


def _simulated(arguments: Namespace, curves: Path | None) -> dict[str, Any]:
    flags = [f"--slots={arguments.slots}", f"--seed={arguments.seed}"]
    if curves is not None:
        flags.append(f"--curves={curves}")
    if arguments.seconds_per_unit is not None:
        flags.append(f"--seconds-per-unit={arguments.seconds_per_unit}")
    for name in ("deadline", "spot_availability", "spot_trace", "changeover_seconds"):
        if (value := getattr(arguments, name)) is not None:
            flags.append(f"--{name.replace('_', '-')}={value}")
    asked = (arguments.file, arguments.overrides, *flags)
    found: dict[str, Any] = checked_slowly("simulating", *asked, module=MODULE)["simulation"]
    return found


def _time_unit(found: Item) -> tuple[float, str]:
    """Seconds of the unit in which the makespan is a handy number, and its name."""
    for size, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if found["makespan_seconds"] >= 3 * size:
            return size, name
    return 1.0, "seconds"


def _timed(found: Item, at_seconds: float) -> str:
    size, name = _time_unit(found)
    return f"{at_seconds / size:.4g} {name}"


def _course(found: Item) -> list[Point]:
    """The best metric over time, as the steps it falls or rises by."""
    size, _ = _time_unit(found)
    points: list[Point] = []
    for at_seconds, metric in found["best"]:
        if points:
            points.append((at_seconds / size, points[-1][1]))
        points.append((at_seconds / size, metric))
    if points:
        points.append((found["makespan_seconds"] / size, points[-1][1]))
    return points


def _cluster_text(found: Item) -> str:
    each = found["slots_per_trial"]
    return (
        f"{counted(found['slots'], 'slot')}, {each} per trial; {100 * found['slot_use']:.1f} % used"
    )


def _trained_text(found: Item) -> str:
    amount = f"{round(found['units'], 2):.10g} {found['unit']}"
    return amount if found["unit"] == "batches" else f"{amount} ({found['batches']} batches)"


def _best_text(found: Item) -> str | None:
    if not found["best"]:
        return None
    at_seconds, metric = found["best"][-1]
    trial = f"by trial {found['best_trial']} after {_timed(found, at_seconds)}"
    return f"{cell_text(found['metric'])} {metric:.6g} {trial}"


def _curves_text(found: Item) -> str:
    curves = found["curves"]
    if curves["kind"] == "synthetic":
        return "made up"
    return (
        f"of {curves['followed']} among {counted(curves['trials'], 'recorded trial')},"
        f" {curves['exact']} of {found['trials']} with their very hyperparameters;"
        f" {100 * curves['share_beyond']:.3g} % of the batches beyond the records, where the last"
        " metric was held"
    )


COLUMNS = (
    Column("Searcher", lambda found: found["searcher"]),
    Column("Cluster", _cluster_text),
    Column("Makespan", lambda found: _timed(found, found["makespan_seconds"])),
    Column("Trials", lambda found: found["trials"]),
    Column("Trained", _trained_text),
    Column("Best", _best_text),
    Column("Curves", _curves_text),
    Column("Ended", lambda found: found["state"]),
)
