"""Looks into the state table past the API, in a child process of the server's."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud import DetcloudError
from detcloud.cli.child import run_module
from detcloud.client.home import Home

MODULE = "lambdas.dump"


def dump_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "partition", metavar="ACTOR", help="such as experiment#1, trial#7 or pool#default"
    )
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="of a deployed cluster, read with your own credentials of AWS "
        "(default: the embedded cluster's)",
    )


def dump(arguments: Namespace) -> int:
    """Prints the rows as JSON, with whatever secrets are in them."""
    file = Home.from_environment().folder / "state.db"
    place = ["--table", arguments.table] if arguments.table else ["--file", str(file)]
    done = run_module(MODULE, [arguments.partition, *place])
    if done.returncode:
        raise DetcloudError(done.stderr.strip() or "the table could not be read")
    sys.stdout.write(done.stdout)
    return 0
