"""`python -m control_plane.config FILE`: check, preview or migrate an experiment configuration."""

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
from control_plane.searchers.registry import can_continue, searcher_spec
from control_plane.suggestions.availability import missing_package_reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the experiment configuration in a file and print the result to standard output.

    Return 0 for a valid configuration. Otherwise print each problem as a line and return 1. A file
    that cannot be read is a problem. Without options, print a summary and the warnings. Exit with
    SystemExit after `--help` and `--reference`, and for unknown options.

    - `--config PATH=VALUE` overrides a field. No template or cluster is read.
    - `--json` prints a JSON report instead of text: `ok`, `era`, `problems`, `warnings`, and
      `config` with masked secrets. The report is also printed for an invalid configuration.
    - `--migrate` prints the configuration of the length era instead of the summary. With `--json`,
      `migrated` in the report has this text. Masks are accepted as the values of secrets.
    - `--preview` adds the preview of the search as `preview` to the report of `--json`. Progress
      goes to standard error. Masks are accepted as the values of secrets.
    - `--for-trial` puts the values for a trial into the report of `--json`: `config` with unmasked
      `data`, and unmasked `environment_variables`.

    Without `--for-trial`, a missing Python package of the searcher is a problem. Without
    `--migrate`, `--preview` and `--for-trial`, a deadline in the past is a problem as well.

    Args:
        arguments: the words of the command line. None: the arguments of the process.
    """
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
        # Previews and migrations use no secrets, so a printed configuration is good enough.
        accepts_masks = options.preview or options.migrate
        config = check_config(source, overrides=options.config, accepts_masks=accepts_masks)
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
    """Add the repeatable option `--config PATH=VALUE` to `parser`, collected in the list `config`.

    The list has the texts `PATH=VALUE` in the order of the options, unparsed and unchecked. The
    check of the configuration reports a text without `=`. Without the option, the list is empty.
    """
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
    """The option `--reference`: print the reference of experiments' fields and exit with 0."""

    def __call__(self, parser: argparse.ArgumentParser, *parsed: object) -> None:
        from control_plane.config.reference import render_reference

        _print(render_reference().rstrip("\n"))
        parser.exit()


def read_config(file: str) -> str:
    """Return the text of a configuration file.

    For a file of more than BYTES_MAX bytes, return the first BYTES_MAX + 1 bytes, with replacement
    characters for invalid UTF-8. The check then refuses the length.

    Raises:
        ConfigInvalid: the file cannot be read, or is short enough but not UTF-8.
    """
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(BYTES_MAX + 1)
        # Reading may have stopped inside a character; the check must refuse the length instead.
        return data.decode(errors="replace" if len(data) > BYTES_MAX else "strict")
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
    except ValueError as error:
        reason = f"cannot be read: {error}"
    raise ConfigInvalid([Problem("", None, None, reason)])


def _check_searcher_packages(config: ExperimentConfig) -> None:
    """Raise ConfigInvalid if the searcher needs a package that is not installed on this machine.

    A server on the same machine would refuse the searcher, too.
    """
    if why := missing_package_reason(config.searcher.name):
        raise ConfigInvalid([Problem("searcher.name", None, None, why)])


def _check_submittable(config: ExperimentConfig) -> None:
    """Raise ConfigInvalid if the deadline has passed, as every cluster would."""
    now_ms = time.time_ns() // 1_000_000
    deadline = config.resources.deadline
    if deadline is not None and deadline_ms(deadline, now_ms) <= now_ms:
        hint = "use a later time or a duration like '6h'"
        message = f"has passed: {deadline}"
        raise ConfigInvalid([Problem("resources.deadline", None, deadline, message, hint)])


def _print_progress(done: int, total: int | None) -> None:
    """Write the progress of a preview to standard error, as a line for the parent process.

    Args:
        done: the number of previewed trials.
        total: the number of all trials. None is written as 0.
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
    if not can_continue(config.searcher.name):
        rows.append(("continuable", "no: pause the search to go on later"))
    width = max(len(label) for label, _ in rows) + 1
    return [f"{label + ':':{width}} {value}" for label, value in rows]


def _direction(config: ExperimentConfig) -> str:
    return "minimizes" if config.searcher.smaller_is_better else "maximizes"


def render_report(report: dict[str, Any]) -> str:
    """Return a report as indented JSON in ASCII without control characters except line breaks.

    The delete character, which JSON would leave as is, becomes an escape sequence.
    """
    return json.dumps(report, indent=2).replace("\x7f", "\\u007f")


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON values: path, line, value, message and hint.

    An empty hint becomes None.
    """
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
