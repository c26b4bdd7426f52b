"""Checks of configuration files by the server's code, in a child process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from detcloud.cli.framework.failures import detail_line
from detcloud.cli.local.server_modules import LineHandler, run_module
from detcloud.cli.rendering.progress import Progress, show_progress
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

CHECKER = "control_plane.config"
CLUSTER_CHECKER = "control_plane.config.cluster"
_PROGRESS = re.compile(r"[a-z]+ (\d+) of (\d+)\n")


class InvalidConfigError(DetcloudError):
    """A configuration that the checker refused. The message has a line for each problem."""


def run_checker(
    file: Path,
    overrides: list[str],
    flags: list[str],
    handle_line: LineHandler = lambda line: False,
    module: str = CHECKER,
) -> subprocess.CompletedProcess[str]:
    """Run a checking module of the server on a file in a child process, and return the finished
    process.

    Wait for the process without a time limit. A failed check does not raise: the exit code and the
    output report the result. The file is not changed.

    Args:
        overrides: KEY=VALUE texts that change fields of the configuration.
        flags: options of the module.
        handle_line: gets each line of the child's stderr, and returns whether to remove the line.
        module: the server's module to run.

    Raises:
        DetcloudError: the server is not installed.
    """
    words = [*flags, *(f"--config={override}" for override in overrides), "--", str(file)]
    return run_module(module, words, handle_line)


def check_file(
    file: Path,
    overrides: list[str],
    *flags: str,
    module: str = CHECKER,
    handle_line: LineHandler = lambda line: False,
) -> dict[str, Any]:
    """Check a configuration file in a child process, and return the checker's report, for example
    `config` and `warnings`.

    Wait for the child without a time limit. The file is not changed, and no cluster is used. A file
    that cannot be read is a problem of the configuration.

    Args:
        overrides: KEY=VALUE texts that change fields of the configuration.
        flags: options of the checker that request more than a check.
        module: the server's module to run.
        handle_line: gets each line of the child's stderr, and returns whether to remove the line.

    Raises:
        InvalidConfigError: the configuration has problems. The message has a line for each.
        DetcloudError: the checker failed, or the server is not installed.
    """
    done = run_checker(file, overrides, ["--json", *flags], handle_line, module)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"{file} could not be checked: {done.stderr.strip()}") from None
    if not report["ok"]:
        lines = [detail_line(problem, str(file)) for problem in report["problems"]]
        raise InvalidConfigError("\n".join([f"{file} was refused", *lines]))
    return report


def check_file_with_progress(
    label: str, file: Path, overrides: list[str], *flags: str, module: str = CHECKER
) -> dict[str, Any]:
    """Run `check_file` with a progress line on stderr that counts trials, and return the report.

    Args:
        label: the text at the beginning of the progress line.
        file: the configuration file.
        overrides: KEY=VALUE texts that change fields of the configuration.
        flags: options of the checker that request more than a check.
        module: the server's module to run.

    Raises:
        InvalidConfigError: the configuration has problems. The message has a line for each.
        DetcloudError: the checker failed, or the server is not installed.
    """
    with show_progress(label, lambda trials: count_text(trials, "trial")) as progress:
        return check_file(
            file,
            overrides,
            *flags,
            module=module,
            handle_line=lambda line: update_progress(progress, line),
        )


def update_progress(progress: Progress, line: str) -> bool:
    """Show a line like `previewed 3 of 12` as progress. Return whether the line reports progress.
    Other lines change nothing.

    Args:
        line: a line of a child's stderr, with the line break.
    """
    match = _PROGRESS.fullmatch(line)
    if match:
        progress.update(int(match[1]), int(match[2]))
    return match is not None
