"""`detcloud debug`: reads the state table without the API, in a child process."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.deployable_clouds import CLOUDS
from detcloud.cli.framework.options import add_cloud_option
from detcloud.cli.local.server_modules import run_module
from detcloud.client.home import Home
from detcloud.shared.errors import DetcloudError

MODULE = "lambdas.dump"


def add_dump_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `dump_partition`: ACTOR, stored as `partition`, `--table`, `--cloud` and
    `--with-secrets`.
    """
    parser.add_argument(
        "partition", metavar="ACTOR", help="such as experiment#1, trial#7 or pool#default"
    )
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="the table of a deployed cluster, read with your own credentials for "
        f"{' or '.join(cloud.title for cloud in CLOUDS)} (default: the embedded cluster's)",
    )
    add_cloud_option(parser)
    parser.add_argument(
        "--with-secrets",
        action="store_true",
        help="print the secrets of configurations, which are masked by default; do not publish the "
        "output",
    )


def dump_partition(arguments: Namespace) -> int:
    """Print the rows of an actor as a JSON array, and return 0. The array is empty for an unknown
    actor.

    Secrets are masked unless `--with-secrets` is given. The rows are read from the state of the
    local cluster, which may be running. With `--table`, the rows are read from a deployed cluster's
    table in the cloud of `--cloud`, with the user's credentials. A child process reads the rows,
    and its notices are printed to stderr. The wait has no limit.

    Raises:
        DetcloudError: the file or table does not exist or could not be read, or the server is not
            installed.
    """
    home = Home.from_environment().folder
    table = ["--table", arguments.table, "--cloud", arguments.cloud]
    source = table if arguments.table else ["--home", str(home)]
    shown = ["--with-secrets"] if arguments.with_secrets else []
    done = run_module(MODULE, [arguments.partition, *source, *shown])
    if done.returncode:
        raise DetcloudError(done.stderr.strip() or "could not read the table")
    sys.stderr.write(done.stderr)
    sys.stdout.write(done.stdout)
    return 0


HANDLERS: Handlers = {
    "debug dump": Handler(add_dump_arguments, dump_partition),
}
