"""`python -m control_plane.config FILE`: checks an experiment configuration, or migrates it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_plane.config.advice import config_warnings
from control_plane.config.check import check_config
from control_plane.config.deadline import deadline_ms
from control_plane.config.durations import duration_text
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.migration import migrate_config
from control_plane.config.preview import preview_report
from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.yaml_document import BYTES_MAX
from control_plane.findings import printable_line
from control_plane.searchers.registry import searcher_spec
from control_plane.suggestions.availability import missing_package_reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the file; return 0 if it is valid, else 1 after printing its problems, one a line."""
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
        config = check_config(source, overrides=options.config)
        warnings = list(config_warnings(config))
        report |= {"era": config.era.value, "config": config.masked_values(), "warnings": warnings}
        lines = [*_summary(config), *(f"warning: {warning}" for warning in warnings)]
        text = "\n".join(map(printable_line, lines))
        if not options.for_trial:
            _check_searcher_packages(config)
        if not (options.for_trial or options.preview or options.migrate):
            _check_submittable(config)
        if options.for_trial:
            variables = config.environment.environment_variables.reveal()
            report |= {"config": config.trial_values(), "environment_variables": variables}
        if options.preview:
            report["preview"] = preview_report(
                config, lambda done: _print_progress(done, config.trials)
            )
        if options.migrate:
            text = migrate_config(source, overrides=options.config).rstrip("\n")
            report["migrated"] = text + "\n"
    except ConfigInvalid as error:
        text = "\n".join(problem.text(options.file) for problem in error.problems)
        report |= {"ok": False, "problems": [problem_values(item) for item in error.problems]}
    _print(render_report(report) if options.json else text)
    return 0 if report["ok"] else 1


def add_overrides_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option by which the command line sets fields."""
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
    add_overrides_argument(parser)
    return parser


class _Reference(argparse.Action):
    """Prints a document and ends the program, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: object) -> None:
        from control_plane.config.reference import render_reference

        _print(render_reference().rstrip("\n"))
        parser.exit()


def read_config(file: str) -> str:
    """Read a configuration's text; ConfigInvalid for a file that cannot be read."""
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


def _check_searcher_packages(config: ExperimentConfig) -> None:
    """Refuse a searcher whose packages are missing here, where the server would run too."""
    if why := missing_package_reason(config.searcher.name):
        raise ConfigInvalid([Problem("searcher.name", None, None, why)])


def _check_submittable(config: ExperimentConfig) -> None:
    """Refuse a configuration that every cluster would refuse."""
    now_ms = time.time_ns() // 1_000_000
    deadline = config.resources.deadline
    if deadline is not None and deadline_ms(deadline, now_ms) <= now_ms:
        hint = "use a later time or a duration like '6h'"
        message = f"has passed: {deadline}"
        raise ConfigInvalid([Problem("resources.deadline", None, deadline, message, hint)])


def _print_progress(done: int, total: int | None) -> None:
    """Print a line to standard error for a parent process that shows the progress of a long
    preview.
    """
    sys.stderr.write(f"previewed {done} of {total or 0}\n")


def _summary(config: ExperimentConfig) -> list[str]:
    trials = config.trials
    lengths = list(config.searcher.lengths().values())
    rows = [
        ("name", config.name or config.description or ""),
        ("era", config.era.value),
        ("searcher", f"{config.searcher.name} ({_direction(config)} {config.searcher.metric})"),
        ("trials", "as the search goes" if trials is None else str(trials)),
        ("slots per trial", str(config.resources.slots_per_trial)),
    ]
    if len(pools := config.resources.pools) > 1:
        patience = duration_text(config.resources.pool_patience)
        rows.append(("resource pools", f"{', then '.join(pools)}, after {patience} in each"))
    if trials is not None and len(lengths) == 1:
        spec = searcher_spec(config.searcher.name)
        most = "" if spec.trains_to_end else "at most "
        trainings = spec.training_count(config.searcher) if spec.training_count else trials
        rows.append(("total", f"{most}{trainings * lengths[0].count} {config.unit}"))
    width = max(len(label) for label, _ in rows) + 1
    return [f"{label + ':':{width}} {value}" for label, value in rows]


def _direction(config: ExperimentConfig) -> str:
    return "minimizes" if config.searcher.smaller_is_better else "maximizes"


def render_report(report: dict[str, Any]) -> str:
    """Render a report as JSON in which nothing steers a terminal."""
    return json.dumps(report, indent=2).replace("\x7f", "\\u007f")


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON values."""
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
