"""`detcloud version`: shows the versions of the command line and of the cluster."""

from __future__ import annotations

from argparse import Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_record
from detcloud.cli.rendering.table import field_column
from detcloud.client import NoCluster
from detcloud.shared.http import Unreachable
from detcloud.shared.version import __version__

COLUMNS = (
    field_column("Client", "client"),
    field_column("Cluster", "cluster"),
    field_column("URL", "url"),
)


def show_versions(arguments: Namespace) -> int:
    """Print the versions of this program and of the cluster, and the cluster's address, as text,
    CSV, JSON or YAML. Return 0.

    The cluster's version is N/A, or null in JSON and YAML, if no cluster is configured or answers.
    No cluster is started.

    Raises:
        DetcloudError: the cluster refuses the request, or the token or address is unusable.
    """
    versions = {"client": __version__, "url": None, "cluster": None}
    try:
        client = connect(arguments)
        versions |= {"url": client.url, "cluster": client.overview()["version"]}
    except (NoCluster, Unreachable):
        pass
    print_record(COLUMNS, versions, arguments)
    return 0


HANDLERS: Handlers = {
    "version": Handler(add_output_options, show_versions),
}
