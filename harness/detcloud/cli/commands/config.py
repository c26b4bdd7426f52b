"""`detcloud config check`: checks a configuration file without a cluster."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_overrides_option
from detcloud.cli.local.config_checker import CHECKER, CLUSTER_CHECKER, run_checker
from detcloud.cli.rendering.terminal import sanitize
from detcloud.shared.errors import DetcloudError


def add_check_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an experiment configuration")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--migrate", action="store_true", help="print it in the length form")
    which.add_argument(
        "--cluster", action="store_true", help="FILE is a cluster configuration, with pools"
    )
    add_overrides_option(parser)


def check_config(arguments: Namespace) -> int:
    """Print what the checker prints; return 0 when it accepts the file, else 1."""
    flags = [f"--{name}" for name in ("json", "migrate") if getattr(arguments, name)]
    if arguments.cluster and arguments.overrides:
        raise DetcloudError("--config sets fields of experiment configurations only")
    module = CLUSTER_CHECKER if arguments.cluster else CHECKER
    done = run_checker(arguments.file, arguments.overrides, flags, module=module)
    # Written here, where a full disk or a reader that left is no traceback of the checker's.
    sys.stderr.writelines(f"{sanitize(line)}\n" for line in done.stderr.splitlines())
    sys.stdout.write(done.stdout)
    return 0 if done.returncode == 0 else 1


HANDLERS: Handlers = {
    "config check": Handler(add_check_arguments, check_config),
}
