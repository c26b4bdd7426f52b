"""`detcloud deploy trust local`: lets clouds trust a server on own machines."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.local.server_modules import run_module
from detcloud.shared.errors import DetcloudError

MODULE = "infra.server_trust"


def add_server_trust_arguments(parser: ArgumentParser) -> None:
    """Add the options of `print_server_trust`: the required `--clouds`, `--config` and
    `--remove`.
    """
    parser.add_argument(
        "--clouds",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file with the remote accounts, as in `detcloud up --clouds`",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the cluster configuration, whose pools may need further permissions",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="print the commands that remove the trust, for use when the clouds have no instances "
        "left",
    )


def print_server_trust(arguments: Namespace) -> int:
    """Print the script that creates the remote accounts of a cluster on own machines, and return 0.
    The administrators of the clouds run the script.

    With `--remove`, print the script that removes the remote accounts. No script is run here. The
    cluster must run, because the instances get the cluster's id as a tag.

    Raises:
        DetcloudError: no cluster runs, a file is invalid, or packages are missing.
    """
    cluster_id = connect(arguments).overview()["cluster_id"]
    words = [f"--clouds={arguments.clouds}", f"--cluster-id={cluster_id}"]
    words += [f"--config={arguments.config}"] if arguments.config is not None else []
    done = run_module(MODULE, [*words, *(["--remove"] if arguments.remove else [])])
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(
            "the commands could not be printed, which needs the packages of "
            f"pip install 'detcloud[infra]': {done.stderr.strip()[-2000:]}"
        ) from None
    if "error" in answer:
        raise DetcloudError(answer["error"])
    sys.stdout.write(answer["commands"])
    return 0


HANDLERS: Handlers = {
    "deploy trust local": Handler(add_server_trust_arguments, print_server_trust),
}
