"""Arguments that name checkpoints and files of checkpoints, and the fetch of named checkpoints."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import parse_uuid_prefix, parse_uuid_prefixes
from detcloud.cli.framework.session import connect
from detcloud.client import Checkpoint


def add_uuid_argument(parser: ArgumentParser) -> None:
    """Add the required argument UUID, stored as the text `uuid`. A beginning of a UUID is accepted.
    Text with other characters than hexadecimal digits and hyphens is a usage error.
    """
    parser.add_argument(
        "uuid", type=parse_uuid_prefix, metavar="UUID", help="a UUID, or a unique prefix of one"
    )


def load_checkpoint(arguments: Namespace) -> Checkpoint:
    """Fetch the checkpoint of `add_uuid_argument` from the configured cluster. The client is stored
    in `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: no cluster is available, the request failed, or no checkpoint or several
            begin with the prefix.
    """
    return connect(arguments).checkpoint(arguments.uuid)


def add_uuids_argument(parser: ArgumentParser) -> None:
    """Add the argument UUID, required and repeatable, stored as `uuids`: a list of lists of texts.

    A word may have several UUIDs or beginnings of UUIDs, separated by commas. Each word gives one
    inner list.
    """
    parser.add_argument(
        "uuids",
        type=parse_uuid_prefixes,
        nargs="+",
        metavar="UUID",
        help="UUIDs or unique prefixes, separated by spaces or commas",
    )


def load_checkpoints(arguments: Namespace) -> list[Checkpoint]:
    """Fetch the checkpoints of `add_uuids_argument` in the order of the command line. Repeated
    UUIDs are fetched repeatedly.

    Raises:
        DetcloudError: no cluster is available, a request failed, or no checkpoint or several begin
            with a prefix.
    """
    client = connect(arguments)
    return [client.checkpoint(prefix) for part in arguments.uuids for prefix in part]


def add_patterns_option(parser: ArgumentParser, option: str, dest: str, text: str) -> None:
    """Add an option for patterns of file paths, which may be repeated. The attribute `dest` is a
    list of texts, empty by default. The patterns are not checked.

    Args:
        option: the option's spelling, such as `--glob`.
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
