"""`detcloud simulate cluster`: runs simulated clusters with injected faults, in a child process."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.framework.argument_types import parse_count, parse_hours
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK, USAGE
from detcloud.cli.framework.failures import report_failure
from detcloud.cli.local.config_checker import update_progress
from detcloud.cli.local.server_modules import run_module
from detcloud.cli.rendering.conditions import condition_text
from detcloud.cli.rendering.output import add_output_options, print_record, print_value
from detcloud.cli.rendering.progress import Progress, show_progress
from detcloud.cli.rendering.table import Column, Item
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

MODULE = "simulator"


def add_simulate_cluster_arguments(parser: ArgumentParser) -> None:
    """Add the options of `simulate_cluster`: seeds, faults, the size of the clusters, the virtual
    time, `--output`, and the output form (`--json` or `--yaml`).

    All are None by default, for the default of the simulation. `--seed` and `--seeds` exclude each
    other.
    """
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=parse_count, metavar="N", help="run only this seed")
    which.add_argument(
        "--seeds", type=parse_count, metavar="N", help="how many seeds to run (default: 1)"
    )
    parser.add_argument(
        "--first", type=parse_count, metavar="N", help="the first of several seeds (default: 1)"
    )
    parser.add_argument(
        "--faults",
        metavar="none|all|LIST",
        help="which faults to inject, separated by commas (default: all)",
    )
    parser.add_argument(
        "--agents", type=parse_count, metavar="N", help="the maximum number of agents in a pool"
    )
    parser.add_argument(
        "--pools", type=parse_count, metavar="N", help="the number of resource pools"
    )
    parser.add_argument(
        "--experiments", type=parse_count, metavar="N", help="the number of submitted experiments"
    )
    parser.add_argument(
        "--hours",
        type=parse_hours,
        metavar="HOURS",
        help="virtual time during which faults are injected",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="store the outcome of each seed in FILE, and skip the seeds that FILE has",
    )
    add_output_options(parser, csv=False)


def simulate_cluster(arguments: Namespace) -> int:
    """Run simulated clusters, and print the totals, or the whole result with `--json` or `--yaml`.

    The clusters run on this machine, without a time limit, and with a progress line on stderr. With
    `--output`, the outcome of each seed is stored in a file, and seeds that the file has are
    skipped. Return OK, FAILED if an invariant was violated, or USAGE if an option was refused. A
    refusal is printed to stderr.

    Raises:
        DetcloudError: the simulation printed no result, or the server is not installed.
    """
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
    values = {name: getattr(arguments, name) for name in names}
    flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
    result = _run_simulation(flags)
    if "error" in result:
        report_failure(DetcloudError(result["error"]))
        return USAGE
    if arguments.form == "text":
        print_record(COLUMNS, result, arguments)
    else:
        print_value(result, arguments.form)
    return OK if result["ok"] else FAILED


def _run_simulation(flags: list[str]) -> dict[str, Any]:
    """Run the child process with a progress line, and return the result. The wait has no limit.

    A result with the key `error` means that an option was refused.

    Args:
        flags: the options of the child, such as `--seeds=3`.

    Raises:
        DetcloudError: the child printed no JSON, or the server is not installed.
    """
    with show_progress("simulating", lambda clusters: count_text(clusters, "cluster")) as progress:
        done = run_module(MODULE, flags, lambda line: _handle_line(progress, line))
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        text = f"the simulation failed: {done.stderr.strip()[-2000:]}"
        raise DetcloudError(text) from None
    return result


def _handle_line(progress: Progress, line: str) -> bool:
    """Update the progress line if the child reports progress. Return whether `run_module` omits the
    line from the error output: True for progress and for the violation of a seed, otherwise False.

    A violation is not shown, because the result reports violations.

    Args:
        progress: the progress line, which may be redrawn.
        line: a line that the child wrote to stderr.
    """
    return update_progress(progress, line) or line.startswith("violation: ")


def _time_text(result: Item) -> str:
    """Return the simulated hours, the real seconds, and the ratio of both."""
    hours = result["virtual_seconds"] / 3600
    ratio = f"{result['virtual_over_real']:,.0f} times real time"
    return f"{hours:,.1f} virtual hours in {result['wall_seconds']:.1f} s: {ratio}"


def _counts_text(counts: dict[str, int]) -> str | None:
    """Return counts as a text, for example `3 kills, 1 outage`. Return None without counts."""
    return ", ".join(f"{number} {name}" for name, number in counts.items()) or None


def _experiments_text(result: Item) -> str | None:
    """Return the numbers of experiments by condition, for example `3 finished, 1 failed`. Return
    None without experiments.
    """
    counts = result["experiments"].items()
    return _counts_text({condition_text({"state": state}): number for state, number in counts})


def _notices_text(result: Item) -> str | None:
    """Return the number of termination notices with time for a checkpoint, and of saved
    checkpoints. Return None without notices.
    """
    if not result["notices"]:
        return None
    return f"{result['notices']} with time for a checkpoint, {result['saved']} checkpoints saved"


def _violations_text(result: Item) -> str:
    """Return the number of violations, with the first line and the reproducing command for each
    failed seed.

    A first line is cut after 160 characters. Without violations, the text is `0`.
    """
    lines = [str(result["violations"])]
    lines += [f"{failure['violation'].splitlines()[0][:160]}" for failure in result["failed"]]
    lines += [f"reproduce with: {failure['again']}" for failure in result["failed"]]
    return "; ".join(lines)


COLUMNS = (
    Column("Clusters", lambda result: result["seeds"]),
    Column("Time", _time_text),
    Column("Experiments", _experiments_text),
    Column("Trials", lambda result: result["trials"]),
    Column("Preemptions", lambda result: result["preemptions"]),
    Column("Losses", lambda result: result["losses"]),
    Column("Restarts", lambda result: result["restarts"]),
    Column("Notices", _notices_text),
    Column("Instances", lambda result: f"{result['machines']}, {result['leaked']} leaked"),
    Column("Cost", lambda result: f"${result['cost']:.2f}"),
    Column("Utilisation", lambda result: f"{100 * result['utilisation']:.1f} %"),
    Column("Faults", lambda result: _counts_text(result["faults"])),
    Column("Violations", _violations_text),
)


HANDLERS: Handlers = {
    "simulate cluster": Handler(add_simulate_cluster_arguments, simulate_cluster),
}
