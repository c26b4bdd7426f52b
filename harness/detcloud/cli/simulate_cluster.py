"""Runs a whole simulated cluster under faults, or many, in a child process of the server's."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud import DetcloudError
from detcloud.cli.child import run_module
from detcloud.cli.commands import FAILED, OK, USAGE
from detcloud.cli.failures import report
from detcloud.cli.options import count, seconds
from detcloud.cli.output import add_output_options, print_record, print_value
from detcloud.cli.progress import Progress, progress
from detcloud.cli.table import Column, Item
from detcloud.cli.terminal import counted

MODULE = "lambdas.simulation"
_PROGRESS = re.compile(r"[a-z]+ (\d+) of (\d+)\n")


def simulate_cluster_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=count, metavar="N", help="run this world alone")
    which.add_argument("--seeds", type=count, metavar="N", help="run so many (default: 1)")
    parser.add_argument(
        "--first", type=count, metavar="N", help="the first of several seeds (default: 1)"
    )
    parser.add_argument(
        "--faults",
        metavar="none|all|LIST",
        help="which faults may strike, with commas between (default: all)",
    )
    parser.add_argument("--agents", type=count, metavar="N", help="agents of a pool, at most")
    parser.add_argument("--pools", type=count, metavar="N", help="resource pools")
    parser.add_argument("--experiments", type=count, metavar="N", help="experiments submitted")
    parser.add_argument(
        "--hours", type=seconds, metavar="HOURS", help="virtual time in which faults strike"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="keep the outcome of each seed, and go on from there"
    )
    add_output_options(parser, csv=False)


def simulate_cluster(arguments: Namespace) -> int:
    names = (
        "seed",
        "seeds",
        "first",
        "faults",
        "agents",
        "pools",
        "experiments",
        "hours",
        "output",
    )
    given = {name: getattr(arguments, name) for name in names}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    found = _simulated(flags)
    if "error" in found:
        report(DetcloudError(found["error"]))
        return USAGE
    if arguments.form == "text":
        print_record(COLUMNS, found, arguments)
    else:
        print_value(found, arguments.form)
    return OK if found["ok"] else FAILED


def _simulated(flags: list[str]) -> dict[str, Any]:
    """Raises DetcloudError: the child failed."""
    with progress("simulating", lambda worlds: counted(worlds, "world")) as shown:
        done = run_module(MODULE, flags, lambda line: _told(line, shown))
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        text = f"the simulation failed: {done.stderr.strip()[-2000:]}"
        raise DetcloudError(text) from None
    return found


def _told(line: str, shown: Progress) -> bool:
    """Whether a line was progress, or the word on a seed that failed."""
    if match := _PROGRESS.fullmatch(line):
        shown.update(int(match[1]), int(match[2]))
        return True
    return line.startswith("violation: ")


def _time_text(found: Item) -> str:
    hours = found["virtual_seconds"] / 3600
    ratio = f"{found['virtual_over_real']:,.0f} times real time"
    return f"{hours:,.1f} virtual hours in {found['wall_seconds']:.1f} s: {ratio}"


def _counts_text(counts: dict[str, int]) -> str | None:
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or None


def _notices_text(found: Item) -> str | None:
    if not found["notices"]:
        return None
    return f"{found['notices']} that left time for a checkpoint, {found['saved']} of them saved"


def _violations_text(found: Item) -> str:
    lines = [str(found["violations"])]
    lines += [f"{it['violation'].splitlines()[0][:160]}" for it in found["failed"]]
    lines += [f"again: {it['again']}" for it in found["failed"]]
    return "; ".join(lines)


COLUMNS = (
    Column("Worlds", lambda found: found["seeds"]),
    Column("Time", _time_text),
    Column("Experiments", lambda found: _counts_text(found["experiments"])),
    Column("Trials", lambda found: found["trials"]),
    Column("Preemptions", lambda found: found["preemptions"]),
    Column("Losses", lambda found: found["losses"]),
    Column("Restarts", lambda found: found["restarts"]),
    Column("Notices", _notices_text),
    Column("Instances", lambda found: f"{found['machines']}, {found['leaked']} leaked"),
    Column("Cost", lambda found: f"${found['cost']:.2f}"),
    Column("Utilisation", lambda found: f"{100 * found['utilisation']:.1f} %"),
    Column("Faults", lambda found: _counts_text(found["faults"])),
    Column("Violations", _violations_text),
)
