"""Checks configurations with the server's own code, in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from detcloud import DetcloudError
from detcloud.cli.failures import detail_line
from detcloud.cli.server import server_environment


def check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--migrate", action="store_true", help="print it in the length form")
    overrides_argument(parser)


def overrides_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a field, such as searcher.max_trials=8; may be repeated",
    )


def check(arguments: Namespace) -> int:
    flags = [f"--{name}" for name in ("json", "migrate") if getattr(arguments, name)]
    command = _command(arguments.file, arguments.overrides, flags)
    code = subprocess.run(command, env=server_environment(), check=False).returncode
    return 0 if code == 0 else 1


def checked(file: Path, overrides: list[str], *flags: str) -> dict[str, Any]:
    """What the checker reports of a configuration that it accepts; `flags` ask it for more.

    Raises:
        DetcloudError: it was refused; the message holds a line for each problem.
    """
    command = _command(file, overrides, ["--json", *flags])
    done = subprocess.run(
        command, env=server_environment(), check=False, capture_output=True, text=True
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"{file} could not be checked: {done.stderr.strip()}") from None
    if not report["ok"]:
        lines = [detail_line(problem, str(file)) for problem in report["problems"]]
        raise DetcloudError("\n".join([f"{file} was refused", *lines]))
    return report


def _command(file: Path, overrides: list[str], flags: list[str]) -> list[str]:
    given = [word for override in overrides for word in ("--config", override)]
    return [sys.executable, "-P", "-m", "control_plane.config", str(file), *flags, *given]
