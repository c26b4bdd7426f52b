"""The command line of the bench: measures chosen groups and prints a table or JSON."""

import json
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass

from bench.checkpoints import checkpoints
from bench.cluster import cluster
from bench.commands import commands
from bench.data import data
from bench.deadlines import deadlines
from bench.deployed_figures import DEPLOYED
from bench.fan_in import fan_in
from bench.figures import FULL, QUICK, Figure, Row, Scale, row_without_value
from bench.gangs import gangs
from bench.halving import halving
from bench.lab import lab
from bench.log_policies import log_policies
from bench.logs import logs
from bench.machine import header, this_machine
from bench.packages import packages
from bench.page import page
from bench.pools import pools
from bench.postgresql import on_postgresql
from bench.reading import reading
from bench.resume import resume
from bench.scheduling import scheduling
from bench.simulation import simulation
from bench.sleepers import sleepers
from bench.starts import starts
from bench.stores import stores
from bench.suggestions import suggestions
from bench.throughput import against_peers, trials
from bench.training import training
from bench.tunnel import tunnel
from bench.webhooks import webhooks
from bench.worlds import worlds
from bench.writes import writes
from detcloud.cli.rendering.table import Column, render_table

FIGURES: dict[str, Figure] = {
    "trials": trials,
    "peers": against_peers,
    "postgresql": on_postgresql,
    "lab": lab,
    "writes": writes,
    "halving": halving,
    "suggestions": suggestions,
    "simulate": simulation,
    "worlds": worlds,
    "deadlines": deadlines,
    "scheduling": scheduling,
    "pools": pools,
    "reading": reading,
    "page": page,
    "logs": logs,
    "log-policies": log_policies,
    "webhooks": webhooks,
    "fan-in": fan_in,
    "commands": commands,
    "cluster": cluster,
    "sleepers": sleepers,
    "tunnel": tunnel,
    "starts": starts,
    "packages": packages,
    "training": training,
    "checkpoints": checkpoints,
    "resume": resume,
    "gangs": gangs,
    "data": data,
    "stores": stores,
    **DEPLOYED,
}


def _column(name: str) -> Column:
    return Column(name, lambda item: item[name] or "-")


COLUMNS = tuple(map(_column, ("what", "target", "result", "verdict", "beside")))


def run(argv: Sequence[str]) -> int:
    """Measure the chosen groups, print the figures, and return the exit status.

    The status is 1 if a group raised an exception. A missed target leaves 0: a busy machine misses
    targets too.
    """
    options = _parser().parse_args(argv)
    machine = this_machine()
    print(header(machine), file=sys.stderr if options.json else sys.stdout, flush=True)
    form = options.form == "aws"
    names = options.only or [name for name in FIGURES if (name in DEPLOYED) is form]
    scale = QUICK if options.quick else FULL
    measured = [_measure(name, scale) for name in names]
    rows = [row for group in measured for row in group.rows]
    status = 1 if any(group.raised for group in measured) else 0
    if options.json:
        facts = {**machine._asdict(), "busy": machine.is_busy, "quick": options.quick}
        print(json.dumps({"machine": facts, "rows": [row._asdict() for row in rows]}, indent=2))
        return status
    print(render_table(COLUMNS, [row._asdict() for row in rows], None))
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "form",
        nargs="?",
        choices=("aws",),
        help="measure the form that is deployed to AWS instead",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works")
    parser.add_argument(
        "--only",
        action="append",
        choices=tuple(FIGURES),
        metavar="NAME",
        help=f"a group of figures: {', '.join(FIGURES)}; may be repeated",
    )
    return parser


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """The rows of a group of figures, and whether the group raised an exception."""

    rows: list[Row]
    """The figures, and after an exception a row with its text in place of the missing figures."""
    raised: bool
    """Whether an exception ended the group."""


def _measure(name: str, scale: Scale) -> MeasuredGroup:
    """Measure a group. After an exception, keep the group's earlier rows and add a row with the
    error.
    """
    print(f"{name}:", file=sys.stderr, flush=True)
    rows: list[Row] = []
    try:
        for row in FIGURES[name](scale):
            rows.append(row)
    except Exception as error:
        traceback.print_exc()
        rows.append(row_without_value(name, f"{type(error).__name__}: {error}"))
        return MeasuredGroup(rows, raised=True)
    return MeasuredGroup(rows, raised=False)
