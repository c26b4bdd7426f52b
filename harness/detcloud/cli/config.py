"""Checks configurations with the server's own code, in a child process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from detcloud import DetcloudError
from detcloud.cli.child import Told, run_module
from detcloud.cli.failures import detail_line
from detcloud.cli.progress import progress
from detcloud.cli.terminal import counted

CHECKER = "control_plane.config"
CLUSTER_CHECKER = "control_plane.config.cluster"
_PROGRESS = re.compile(r"[a-z]+ (\d+) of (\d+)\n")


def check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--migrate", action="store_true", help="print it in the length form")
    which.add_argument(
        "--cluster", action="store_true", help="FILE is a cluster configuration, with pools"
    )
    overrides_argument(parser)


def overrides_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        dest="overrides",
        type=override,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a field, such as searcher.max_trials=8; may be repeated",
    )


def override(text: str) -> str:
    """Type of a field and its value on the command line."""
    if "=" not in text or text.startswith("="):
        raise ArgumentTypeError(f"{text!r} is no KEY=VALUE, such as max_restarts=2")
    return text


def check(arguments: Namespace) -> int:
    flags = [f"--{name}" for name in ("json", "migrate") if getattr(arguments, name)]
    if arguments.cluster and arguments.overrides:
        raise DetcloudError("--config sets fields of experiment configurations only")
    module = CLUSTER_CHECKER if arguments.cluster else CHECKER
    done = _checker(arguments.file, arguments.overrides, flags, module=module)
    # Written here, where a full disk or a reader that left is no traceback of the checker's.
    sys.stderr.write(done.stderr)
    sys.stdout.write(done.stdout)
    return 0 if done.returncode == 0 else 1


class FileRefused(DetcloudError):
    """The checker refused a configuration; the message holds a line for each problem."""


def checked(
    file: Path,
    overrides: list[str],
    *flags: str,
    module: str = CHECKER,
    told: Told = lambda line: False,
) -> dict[str, Any]:
    """What the checker reports of a configuration that it accepts; `flags` ask it for more.

    `module` is the server's that is asked.

    Raises:
        FileRefused: it has problems.
        DetcloudError: the checker failed.
    """
    done = _checker(file, overrides, ["--json", *flags], told, module)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"{file} could not be checked: {done.stderr.strip()}") from None
    if not report["ok"]:
        lines = [detail_line(problem, str(file)) for problem in report["problems"]]
        raise FileRefused("\n".join([f"{file} was refused", *lines]))
    return report


def checked_slowly(
    doing: str, file: Path, overrides: list[str], *flags: str, module: str = CHECKER
) -> dict[str, Any]:
    """The same with progress, of which the module tells by lines like `previewed 3 of 12`."""
    with progress(doing, lambda trials: counted(trials, "trial")) as shown:

        def told(line: str) -> bool:
            if match := _PROGRESS.fullmatch(line):
                shown.update(int(match[1]), int(match[2]))
            return match is not None

        return checked(file, overrides, *flags, module=module, told=told)


def _checker(
    file: Path,
    overrides: list[str],
    flags: list[str],
    told: Told = lambda line: False,
    module: str = CHECKER,
) -> subprocess.CompletedProcess[str]:
    given = [*flags, *(f"--config={override}" for override in overrides), "--", str(file)]
    return run_module(module, given, told)
