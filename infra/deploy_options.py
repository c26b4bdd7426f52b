"""The options of `python -m infra.deploy`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from infra.clouds import DEFAULT_CLOUD, PROGRAMS
from infra.verification import PARTS

FLAGS: Final = (
    "forward",
    "key",
    "launches",
    "new-stores",
    "no-check",
    "preview",
    "refresh",
    "remove",
    "restore",
)


def parse_options(arguments: Sequence[str] | None, hows: Sequence[str]) -> argparse.Namespace:
    """Return the options in `arguments`, by default of the command line. `hows` are the commands.

    Invalid options end the process with status 2.
    """
    parser = argparse.ArgumentParser(prog="python -m infra.deploy")
    parser.add_argument("how", choices=hows)
    parser.add_argument("--cloud", choices=PROGRAMS, default=DEFAULT_CLOUD)
    parser.add_argument("--team", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--admin-sha256", required=True)
    parser.add_argument("--output", type=Path)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--time", default="")
    parser.add_argument("--source", default="")
    parser.add_argument("--part", choices=PARTS, default=PARTS[0])
    parser.add_argument("--instance", action="append", default=[], metavar="ZONE/ID")
    parser.add_argument("--role", default="")
    parser.add_argument("--provider", action="append", default=[], metavar="JSON")
    return parser.parse_args(arguments)
