"""Arguments that name checkpoints and files of checkpoints, and the fetch of named checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import parse_uuid_prefix, parse_uuid_prefixes
from detcloud.cli.framework.session import connect
from detcloud.client import Checkpoint


def add_uuid_argument(parser: ArgumentParser) -> None:
    """Add the argument UUID, which may be a unique prefix, stored as `uuid`."""
    parser.add_argument(
        "uuid", type=parse_uuid_prefix, metavar="UUID", help="a UUID, or a unique prefix of one"
    )


def load_checkpoint(arguments: Namespace) -> Checkpoint:
    """Fetch the checkpoint of `add_uuid_argument` from the configured cluster.

    An unknown or ambiguous prefix raises DetcloudError. `main` closes the client.
    """
    return connect(arguments).checkpoint(arguments.uuid)


def add_uuids_argument(parser: ArgumentParser) -> None:
    """Add the argument UUID, which may be repeated, stored as `uuids`."""
    parser.add_argument(
        "uuids",
        type=parse_uuid_prefixes,
        nargs="+",
        metavar="UUID",
        help="UUIDs or unique prefixes, separated by spaces or commas",
    )


def load_checkpoints(arguments: Namespace) -> list[Checkpoint]:
    """Fetch the checkpoints of `add_uuids_argument` in the order of the command line.

    An unknown or ambiguous prefix raises DetcloudError.
    """
    client = connect(arguments)
    return [client.checkpoint(prefix) for part in arguments.uuids for prefix in part]


def add_patterns_option(parser: ArgumentParser, option: str, dest: str, text: str) -> None:
    """Add an option for patterns of file paths, which may be repeated. The default is [].

    Args:
        dest: the attribute of the parsed arguments for the list of patterns.
        text: the beginning of the help.
    """
    parser.add_argument(
        option,
        dest=dest,
        action="append",
        default=[],
        metavar="PATTERN",
        help=f"{text}; may be repeated",
    )
