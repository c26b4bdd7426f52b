"""`python -m simulator --seed N`: run simulated clusters, and print the outcome as JSON.

The exit status is 0 if all invariants held, 1 if an invariant was broken, and 2 for an invalid
command line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from simulator.faults.fault_rates import FAULT_NAMES, UnknownFault, parse_fault_names
from simulator.seeded.runs import (
    Outcome,
    Plan,
    outcome_writer,
    read_outcomes,
    run_seeds,
    sum_outcomes,
)
from simulator.seeded.simulated_cluster import ClusterSize

VIOLATION, USAGE = 1, 2
SHOWN_MAX = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations that the command line names, and print a report as JSON.

    Return the exit status, which the module's docstring describes. Outcomes in the file --output
    are reused, and new outcomes are appended. Progress and violations go to stderr.

    Args:
        arguments: the command line. None for the process's own.
    """
    options = _parser().parse_args(arguments)
    try:
        plan = _plan(options)
    except UnknownFault as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return USAGE
    first = options.seed if options.seed is not None else options.first
    count = 1 if options.seed is not None else options.seeds
    seeds = range(first, first + count)
    known = read_outcomes(options.output)
    outcomes = [known[seed] for seed in seeds if seed in known]
    write, missing = outcome_writer(options.output), [seed for seed in seeds if seed not in known]
    processes = min(options.processes, max(1, len(missing)))
    for outcome in run_seeds(missing, plan, processes):
        outcomes.append(outcome)
        write(outcome)
        _write_progress(outcome, plan, len(outcomes), count)
    report = _report(outcomes, plan)
    print(json.dumps(report))
    return 0 if report["ok"] else VIOLATION


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator", description="Simulate a cluster under faults."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="this seed alone")
    which.add_argument("--seeds", type=int, default=1, help="so many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--faults", default="all", help="none, all, or names with commas between")
    parser.add_argument(
        "--agents", type=int, default=ClusterSize().machines_max, help="in a pool, at most"
    )
    parser.add_argument("--experiments", type=int, default=ClusterSize().experiments)
    parser.add_argument("--pools", type=int, default=ClusterSize().pools)
    parser.add_argument(
        "--hours", type=float, default=ClusterSize().hours, help="of faults, at most"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="keep outcomes here, and go on from them")
    parser.add_argument("--json", action="store_true", help="print JSON, which is the default")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    """Return the plan for the command line. Raises UnknownFault for an unknown fault name."""
    names = {"all": FAULT_NAMES, "none": ()}.get(options.faults)
    if names is None:
        names = parse_fault_names(options.faults.split(","))
    size = ClusterSize(options.experiments, options.pools, options.agents, options.hours)
    return Plan(names, size)


def _write_progress(outcome: Outcome, plan: Plan, done: int, count: int) -> None:
    """Write a line of progress to stderr, preceded by a line about the violation, if any."""
    if outcome.violation:
        why = outcome.violation.splitlines()[0][:200]
        sys.stderr.write(f"violation: {why}; again: {plan.command(outcome.seed)}\n")
    sys.stderr.write(f"simulated {done} of {count}\n")


def _report(outcomes: list[Outcome], plan: Plan) -> dict[str, object]:
    """Return the sums of the outcomes and the first SHOWN_MAX violations, sorted by seed.

    `ok` is whether no outcome has a violation. Each violation has the command that repeats the
    seed. The outcome of a single seed is included completely, as `seed`.
    """
    failed = sorted(
        (outcome for outcome in outcomes if outcome.violation), key=lambda item: item.seed
    )
    report = {
        "ok": not failed,
        **sum_outcomes(outcomes),
        "failed": [
            {
                "seed": outcome.seed,
                "violation": outcome.violation,
                "again": plan.command(outcome.seed),
            }
            for outcome in failed[:SHOWN_MAX]
        ],
    }
    if len(outcomes) == 1:
        report["seed"] = asdict(outcomes[0])
    return report


if __name__ == "__main__":
    sys.exit(main())
