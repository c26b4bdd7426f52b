"""`detcloud user`: shows your user and role on the cluster, and removes the stored token."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_record
from detcloud.cli.rendering.table import field_column
from detcloud.client.endpoint import remove_credentials

IDENTITY_COLUMNS = (
    field_column("User", "user"),
    field_column("Role", "role"),
    field_column("Cluster", "url"),
)


def show_identity(arguments: Namespace) -> int:
    """Print the user and the role of this machine's token, and the cluster's address, as text, CSV,
    JSON or YAML. Return 0.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the token or does not answer.
    """
    client = connect(arguments)
    print_record(IDENTITY_COLUMNS, {**client.whoami(), "url": client.url}, arguments)
    return 0


def add_logout_arguments(parser: ArgumentParser) -> None:
    """Add no argument that `log_out` reads. `--all` of Determined ends with a usage error."""
    add_replaced_option(parser, "-a", "--all", instead="only one token is stored at a time")


def log_out(arguments: Namespace) -> int:
    """Delete `credentials.json` of the data folder, and print whether a token was stored.

    Return 0. The token stays valid on the cluster.

    Raises:
        OSError: the file cannot be deleted.
    """
    print("the stored token was removed" if remove_credentials() else "no token was stored")
    return 0


HANDLERS: Handlers = {
    "user whoami": Handler(add_output_options, show_identity),
    "user logout": Handler(add_logout_arguments, log_out),
}
