"""The command `python -m simulator.search FILE --slots N`.

Simulates the experiment of a configuration and prints the result as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_plane.config.__main__ import add_overrides_argument, problem_values, read_config
from control_plane.config.check import check_config
from control_plane.config.deadline import deadline_ms, span_ms
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from control_plane.simulation.experiment import SimulationResult
from control_plane.simulation.learning_curves import LearningCurves
from control_plane.simulation.search_simulation import (
    check_simulable,
    refusal,
    simulate_search,
    simulated_lengths,
    simulation_report,
    synthetic_curves,
)
from control_plane.simulation.synthetic_curves import SyntheticCurves
from control_plane.spot.comparison import compare_policies
from control_plane.spot.replay import trace_job
from control_plane.spot.traces import SpotTrace, TraceInvalid, generate_trace, read_trace
from control_plane.suggestions.availability import missing_package_reason
from control_plane.suggestions.in_memory import suggest_from_parts
from simulator.search.recorded_curves import CurvesInvalid, RecordedCurves, read_curves

DAYS_MAX = 60
"""The longest simulated deadline, in days."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments`, by default sys.argv, and return the exit code.

    0: printed the result as JSON. 1: printed the problems of the configuration, or of the values of
    options, as JSON. For arguments that the parser refuses, print the usage to stderr and raise
    SystemExit(2).
    """
    options = _parser().parse_args(arguments)
    try:
        report = {"ok": True, "problems": [], "simulation": _simulate(options)}
    except ConfigInvalid as error:
        report = {"ok": False, "problems": [problem_values(problem) for problem in error.problems]}
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator.search", description="Simulate an experiment."
    )
    parser.add_argument("file", metavar="FILE", help="the configuration")
    parser.add_argument("--json", action="store_true", help="print JSON, which is the default")
    parser.add_argument("--slots", type=int, required=True, help="slots of the cluster")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the seed of synthetic curves, and the default seed of the search",
    )
    parser.add_argument("--curves", metavar="FILE", help="a file of recorded curves, - for stdin")
    parser.add_argument("--seconds-per-unit", type=float, help="the duration of a unit of training")
    parser.add_argument("--deadline", help="a duration, instead of resources.deadline")
    parser.add_argument("--changeover-seconds", type=float, default=300.0)
    market = parser.add_mutually_exclusive_group()
    market.add_argument(
        "--spot-availability",
        type=float,
        help="the share of time in which a simulated zone has spot machines",
    )
    market.add_argument("--spot-trace", metavar="FILE", help="when spot machines were available")
    add_overrides_argument(parser)
    return parser


def _simulate(options: argparse.Namespace) -> dict[str, Any]:
    config = check_config(
        read_config(options.file),
        overrides=options.config,
        seed_default=options.seed,
        accepts_masks=True,
    )
    check_simulable(config, options.slots, missing_package_reason(config.searcher.name))
    allowed_ms = _time_to_deadline_ms(config, options)
    started = time.perf_counter()
    curves = _learning_curves(config, options)
    outcome = simulate_search(
        config,
        options.slots,
        curves,
        suggest_from_parts,
        on_progress=lambda ended: _write_progress(ended, config.trials),
    )
    seconds = time.perf_counter() - started
    report = simulation_report(config, options.slots, outcome) | {"wall_seconds": round(seconds, 3)}
    report["curves"] = _curves_report(curves, outcome)
    if allowed_ms is not None:
        report["spot"] = _compare_on_spot(options, outcome.makespan_ms, allowed_ms)
    return report


def _learning_curves(
    config: ExperimentConfig, options: argparse.Namespace
) -> SyntheticCurves | RecordedCurves:
    if options.curves is None:
        return synthetic_curves(config, options.seed, options.seconds_per_unit or 1.0)
    try:
        trials = read_curves(_read_file(options.curves), config.searcher.metric)
        return RecordedCurves(
            trials, config.search_plan().space, simulated_lengths(config), options.seconds_per_unit
        )
    except CurvesInvalid as error:
        place = "the curves" if options.curves == "-" else options.curves
        raise refusal(": ".join(filter(None, (place, error.path))), str(error)) from None


def _read_file(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise refusal(file, f"cannot be read: {reason}") from None


def _time_to_deadline_ms(config: ExperimentConfig, options: argparse.Namespace) -> int | None:
    """Return the duration of --deadline, or by default of `resources.deadline`, in ms.

    Return None without options for spot machines, whatever the configuration says.

    Raises:
        ConfigInvalid: the deadline is missing, invalid, longer than DAYS_MAX, or a point in time
            instead of a duration. Also if --deadline is used without options for spot machines.
    """
    option: str | None = options.deadline
    if options.spot_availability is None and options.spot_trace is None:
        if option is not None:
            hint = "give --spot-availability or --spot-trace"
            raise refusal("--deadline", "requires an option for spot machines", hint)
        return None
    place = "resources.deadline" if option is None else "--deadline"
    text = config.resources.deadline if option is None else option
    if text is None:
        raise refusal("--deadline", "is needed where spot machines are simulated")
    try:
        allowed_ms = span_ms(text)
        if allowed_ms is None:
            deadline_ms(text, 0)
    except ValueError as error:
        raise refusal(place, f"{error}, not {text!r:.60}") from None
    if allowed_ms is None:
        hint = "give --deadline, such as 6h"
        raise refusal(place, "is a point in time, but virtual time supports durations only", hint)
    if allowed_ms > DAYS_MAX * 86_400_000:
        raise refusal(place, f"is simulated for up to {DAYS_MAX} days, not {text}")
    return allowed_ms


def _compare_on_spot(options: argparse.Namespace, work_ms: int, allowed_ms: int) -> dict[str, Any]:
    """Return a comparison of the policies that buy spot machines, as JSON values.

    The cluster counts as one machine whose work takes `work_ms`.
    """
    trace = _spot_trace(options, allowed_ms)
    if not 0 <= options.changeover_seconds <= 86_400:
        text = f"must be between 0 and 86400 seconds, not {options.changeover_seconds:g}"
        raise refusal("--changeover-seconds", text)
    job = trace_job(trace, max(1, work_ms), allowed_ms, round(1000 * options.changeover_seconds))
    if not job.is_feasible:
        least = (work_ms + job.changeover_ms) / 1000
        text = f"leaves {allowed_ms / 1000:g} s, but on-demand machines alone need {least:g} s"
        raise refusal("the deadline", text, "allow more time, or use more --slots")
    return compare_policies(job, trace)


def _spot_trace(options: argparse.Namespace, allowed_ms: int) -> SpotTrace:
    if options.spot_trace is None:
        if not 0 <= options.spot_availability <= 1:
            text = f"must be a share between 0 and 1, not {options.spot_availability:g}"
            raise refusal("--spot-availability", text)
        return generate_trace(options.spot_availability, allowed_ms, options.seed % 2**32)
    try:
        trace = read_trace(_read_file(options.spot_trace))
    except TraceInvalid as error:
        raise refusal(options.spot_trace, str(error)) from None
    if trace.length_ms < allowed_ms:
        lasts, needed = trace.length_ms / 1000, allowed_ms / 1000
        text = f"lasts {lasts:g} s, but the deadline is after {needed:g} s"
        raise refusal(options.spot_trace, text)
    return trace


def _curves_report(curves: LearningCurves, outcome: SimulationResult) -> dict[str, Any]:
    if not isinstance(curves, RecordedCurves):
        return {"kind": "synthetic"}
    usage = outcome.usage
    return {
        "kind": "recorded",
        "trials": curves.recorded_count,
        "followed": curves.followed_count,
        "exact": curves.exact_matches,
        "batches_beyond": usage.extrapolated_batches,
        "share_beyond": usage.extrapolated_batches / usage.batches if usage.batches else 0.0,
    }


def _write_progress(ended: int, total: int | None) -> None:
    """Write a progress line to stderr, for a parent process that shows the progress.

    `total` is the number of trials of the search. None if unknown: written as 0.
    """
    sys.stderr.write(f"simulated {ended} of {total or 0}\n")


if __name__ == "__main__":
    # Actors exist until the end and form no reference cycles. Searching for cycles would take a
    # tenth of the time.
    gc.disable()
    sys.exit(main())
