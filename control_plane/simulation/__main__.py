"""`python -m control_plane.simulation FILE --slots N`: simulates a configuration's experiment and
prints what comes of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from control_plane.actors.experiment_state import Definition
from control_plane.actors.experiment_suggestions import awaited
from control_plane.actors.experiment_summaries import Summaries
from control_plane.config.__main__ import described, read_config
from control_plane.config.check import check
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.searchers.bayesian import TRIED, tried
from control_plane.searchers.method import Suggested
from control_plane.simulation.courses import Courses
from control_plane.simulation.experiment import Outcome, SimulationStuck, simulate
from control_plane.simulation.mail import Actor
from control_plane.simulation.recorded import CurvesInvalid, RecordedCourses, read_curves
from control_plane.simulation.submission import lengths_of, period_of, submission_of
from control_plane.simulation.synthetic import SyntheticCourses
from control_plane.suggestions.installed import INSTALL
from control_plane.suggestions.model import suggested
from control_plane.suggestions.suggester import observation, problem_of

P = TypeVar("P")

# Of searches that have no length.
FULL_LENGTH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """0 with the outcome, 1 with the problems that stand against one."""
    options = _parser().parse_args(arguments)
    try:
        report = {"ok": True, "problems": [], "simulation": _simulated(options)}
    except ConfigInvalid as error:
        report = {"ok": False, "problems": [described(it) for it in error.problems]}
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m control_plane.simulation", description="Simulate an experiment."
    )
    parser.add_argument("file", metavar="FILE", help="the configuration")
    parser.add_argument("--json", action="store_true", help="as it is printed anyway")
    parser.add_argument("--slots", type=int, required=True, help="slots of the cluster")
    parser.add_argument("--seed", type=int, default=0, help="of made-up curves, and of the search")
    parser.add_argument("--curves", metavar="FILE", help="follow these curves, - for stdin")
    parser.add_argument("--seconds-per-unit", type=float, help="how long training takes")
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="set a field, like searcher.max_trials=5 (may be repeated)",
    )
    return parser


def _simulated(options: argparse.Namespace) -> dict[str, Any]:
    config = check(read_config(options.file), overrides=options.config, seed_default=options.seed)
    _check_slots(config, options.slots)
    started = time.perf_counter()
    try:
        submission = submission_of(config)
        courses = _courses(config, options)
        outcome = simulate(
            submission,
            options.slots,
            courses,
            period=period_of(config),
            advise=_advised,
            told=lambda ended: _tell_progress(ended, config.trials),
        )
    except ImportError as error:
        text = f"cannot be simulated: Optuna cannot be used here ({error})"
        raise _refusal("searcher.name", text, INSTALL) from None
    except SimulationStuck as error:
        raise _refusal("searcher", f"cannot be simulated: {error}") from None
    seconds = time.perf_counter() - started
    report = _report(config, options.slots, outcome) | {"wall_seconds": round(seconds, 3)}
    return report | {"curves": _described_courses(courses, outcome)}


def _check_slots(config: ExperimentConfig, slots: int) -> None:
    needed = max(1, config.job.slots_per_trial)
    if slots < needed:
        text = f"is {needed}, but --slots gives the cluster {slots}: no trial could ever start"
        raise _refusal("resources.slots_per_trial", text, f"raise --slots to at least {needed}")
    if config.searcher.name == "custom":
        text = "cannot be simulated: what a custom search does is decided outside of the cluster"
        raise _refusal("searcher.name", text, "simulate another searcher")
    if getattr(config.searcher, "max_time", None) is not None:
        text = "cannot be simulated: only the training code knows its time_metric"
        raise _refusal("searcher.max_time", text, "give lengths instead")


def _advised(actor: Actor) -> Suggested | None:
    """What the suggester of a cluster answers, from what the experiment knows."""
    number = awaited(actor.state)
    if number is None:
        return None
    definition = actor.parts["definition"]
    assert isinstance(definition, Definition)
    hparams = [one for piece in _parts(actor, f"search/{TRIED}", bytes) for one in tried(piece)]
    summaries = [one for part in _parts(actor, "trials/", Summaries) for one in part.trials]
    known = [observation(one, seen) for one, seen in zip(hparams, summaries, strict=False)]
    return Suggested(number, (suggested(problem_of(definition, actor.state), known, number),))


def _parts(actor: Actor, prefix: str, kind: type[P]) -> list[P]:
    """The parts whose names are a prefix and a number, by number."""
    found = {name.removeprefix(prefix): part for name, part in actor.parts.items()}
    numbers = sorted(int(rest) for rest in found if rest.isdigit())
    return [part for n in numbers if isinstance(part := found[str(n)], kind)]


def _courses(
    config: ExperimentConfig, options: argparse.Namespace
) -> SyntheticCourses | RecordedCourses:
    space, lengths = config.search_plan().space, lengths_of(config)
    if options.curves is None:
        full = next(iter(config.searcher.lengths().values()), None)
        return SyntheticCourses(
            space=space,
            lengths=lengths,
            full_length=full.count if full else FULL_LENGTH,
            smaller_is_better=config.searcher.smaller_is_better,
            seed=options.seed,
            unit_seconds=options.seconds_per_unit or 1.0,
        )
    try:
        trials = read_curves(_read_curves(options.curves), config.searcher.metric)
        return RecordedCourses(trials, space, lengths, options.seconds_per_unit)
    except CurvesInvalid as error:
        place = "the curves" if options.curves == "-" else options.curves
        raise _refusal(": ".join(filter(None, (place, error.path))), str(error)) from None


def _read_curves(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refusal(file, f"cannot be read: {reason}") from None


def _refusal(path: str, message: str, hint: str = "") -> ConfigInvalid:
    return ConfigInvalid([Problem(path, None, None, message, hint)])


def _report(config: ExperimentConfig, slots: int, outcome: Outcome) -> dict[str, Any]:
    experiment, account = outcome.experiment, outcome.account
    return {
        "searcher": config.searcher.name,
        "metric": config.searcher.metric,
        "smaller_is_better": config.searcher.smaller_is_better,
        "unit": config.unit,
        "slots": slots,
        "slots_per_trial": config.job.slots_per_trial,
        "state": experiment.status.value,
        "makespan_seconds": outcome.makespan_ms / 1000,
        "trials": experiment.trials,
        "units": account.units,
        "batches": account.batches,
        "slot_seconds": account.slot_ms / 1000,
        "slot_use": outcome.slot_use(slots),
        "best_metric": experiment.best_metric,
        "best_trial": experiment.best_trial,
        "best": [[at_ms / 1000, metric] for at_ms, metric in outcome.best],
    }


def _described_courses(courses: Courses, outcome: Outcome) -> dict[str, Any]:
    if not isinstance(courses, RecordedCourses):
        return {"kind": "synthetic"}
    account = outcome.account
    return {
        "kind": "recorded",
        "trials": courses.recorded,
        "followed": courses.followed,
        "exact": courses.exact,
        "batches_beyond": account.beyond,
        "share_beyond": account.beyond / account.batches if account.batches else 0.0,
    }


def _tell_progress(ended: int, total: int | None) -> None:
    """A line for whoever shows the progress of a long simulation."""
    sys.stderr.write(f"simulated {ended} of {total or 0}\n")


if __name__ == "__main__":
    sys.exit(main())
