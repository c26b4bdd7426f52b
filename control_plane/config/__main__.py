"""`python -m control_plane.config FILE`: checks an experiment configuration, or migrates it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_plane.config.check import check
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.images import image_warnings
from control_plane.config.migration import migrate
from control_plane.config.plan import TO_THE_END, NotForeseeable
from control_plane.config.preview import preview
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.searcher import Population
from control_plane.config.yaml_document import BYTES_MAX
from control_plane.suggestions.installed import lacking


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the configuration is valid, else 1 with its problems, one a line."""
    options = _parser().parse_args(arguments)
    report: dict[str, Any] = {
        "ok": True,
        "era": None,
        "problems": [],
        "warnings": [],
        "config": None,
    }
    text = ""
    try:
        source = read_config(options.file)
        config = check(source, overrides=options.config)
        warnings = list(image_warnings(config))
        report |= {"era": config.era.value, "config": config.public(), "warnings": warnings}
        text = "\n".join([_summary(config), *(f"warning: {warning}" for warning in warnings)])
        if not options.for_trial:
            _check_installed(config)
        if options.for_trial:
            variables = config.environment.environment_variables.revealed()
            report |= {"config": config.for_trial(), "environment_variables": variables}
        if options.preview:
            report["preview"] = _preview(config)
        if options.migrate:
            text = migrate(source, overrides=options.config).rstrip("\n")
            report["migrated"] = text + "\n"
    except ConfigInvalid as error:
        text = "\n".join(problem.text(options.file) for problem in error.problems)
        report |= {"ok": False, "problems": [described(it) for it in error.problems]}
    _print(json.dumps(report, indent=2) if options.json else text)
    return 0 if report["ok"] else 1


def overrides_argument(parser: argparse.ArgumentParser) -> None:
    """The fields that the command line sets."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="set a field, like searcher.max_trials=5 (may be repeated)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m control_plane.config", description="Check an experiment configuration."
    )
    parser.add_argument("file", metavar="FILE", help="the YAML file")
    parser.add_argument(
        "--reference", action=_Reference, nargs=0, help="print the reference of all fields instead"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--migrate", action="store_true", help="print the configuration with lengths for steps"
    )
    parser.add_argument(
        "--preview", action="store_true", help="with --json, report the trials it would make"
    )
    parser.add_argument(
        "--for-trial",
        action="store_true",
        help="with --json, report what a trial receives: its data and variables, secrets too",
    )
    overrides_argument(parser)
    return parser


class _Reference(argparse.Action):
    """Ends the program as `--help` does, with a document."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: object) -> None:
        from control_plane.config.reference import reference

        _print(reference().rstrip("\n"))
        parser.exit()


def read_config(file: str) -> str:
    """A configuration's text; ConfigInvalid for a file that cannot be read."""
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(BYTES_MAX + 1)
        # A file that is too long is refused for that, wherever the reading stopped.
        return data.decode(errors="replace" if len(data) > BYTES_MAX else "strict")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
    except ValueError as error:
        reason = f"cannot be read: {error}"
    raise ConfigInvalid([Problem("", None, None, reason)])


def _check_installed(config: ExperimentConfig) -> None:
    """What the searcher needs on the server, which runs on what this program runs on."""
    if why := lacking(config.searcher.name):
        raise ConfigInvalid([Problem("searcher.name", None, None, why)])


def _preview(config: ExperimentConfig) -> dict[str, Any]:
    try:
        found = preview(config, lambda done: _tell_progress(done, config.trials))
    except NotForeseeable as error:
        raise ConfigInvalid([Problem("searcher.name", None, None, str(error))]) from None
    rungs = [rung for bracket in found.brackets for rung in bracket.rungs]
    return {
        "searcher": config.searcher.name,
        "unit": config.time_metric or config.unit,
        "trials": sum(rung.stopped for rung in rungs),
        "units": sum(rung.stopped * rung.length for rung in rungs),
        "batches": found.batches,
        "is_example": found.is_example,
        "brackets": [
            {"rungs": [rung._asdict() for rung in bracket.rungs]} for bracket in found.brackets
        ],
    }


def _tell_progress(done: int, total: int | None) -> None:
    """A line for whoever shows the progress of a long preview."""
    sys.stderr.write(f"previewed {done} of {total or 0}\n")


def _summary(config: ExperimentConfig) -> str:
    trials = config.trials
    lengths = list(config.searcher.lengths().values())
    rows = [
        ("name", config.name or config.description or ""),
        ("era", config.era.value),
        ("searcher", f"{config.searcher.name} ({_direction(config)} {config.searcher.metric})"),
        ("trials", "as the search goes" if trials is None else str(trials)),
        ("slots per trial", str(config.resources.slots_per_trial)),
    ]
    if trials is not None and len(lengths) == 1:
        most = "" if config.searcher.name in TO_THE_END else "at most "
        trainings = trials
        if isinstance(config.searcher, Population):
            # Each member trains one length in each round, whoever that is.
            trainings = config.searcher.population_size * config.searcher.num_rounds
        rows.append(("total", f"{most}{trainings * lengths[0].count} {config.unit}"))
    width = max(len(label) for label, _ in rows) + 1
    return "\n".join(f"{label + ':':{width}} {value}" for label, value in rows)


def _direction(config: ExperimentConfig) -> str:
    return "minimizes" if config.searcher.smaller_is_better else "maximizes"


def described(problem: Problem) -> dict[str, Any]:
    """A problem as JSON."""
    return {
        "path": problem.path,
        "line": problem.line,
        "value": problem.value,
        "message": problem.message,
        "hint": problem.hint or None,
    }


def _print(text: str) -> None:
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")


if __name__ == "__main__":
    sys.exit(main())
