"""`detcloud monitoring`: prints configurations of Prometheus and Grafana for a cluster."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.monitoring.grafana_board import build_board
from detcloud.cli.monitoring.scrape_configuration import scrape_configuration
from detcloud.cli.rendering.streams import write_data
from detcloud.client import NoCluster
from detcloud.client.endpoint import configured_url
from detcloud.shared.yaml_writer import render_yaml

TOKEN_FILE = "/etc/prometheus/detcloud.token"


def add_grafana_arguments(parser: ArgumentParser) -> None:
    """Add no arguments, because all clusters have an equal board."""


def print_board(arguments: Namespace) -> int:
    """Print the Grafana board as JSON, and return 0. No cluster is asked."""
    write_data(json.dumps(build_board(), indent=2) + "\n")
    return 0


def add_prometheus_arguments(parser: ArgumentParser) -> None:
    """Add the option `--token-file` of `print_scrape_configuration`."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=TOKEN_FILE,
        help=f"the file with the token on the machine of Prometheus (default: {TOKEN_FILE})",
    )


def print_scrape_configuration(arguments: Namespace) -> int:
    """Print the scrape configuration of Prometheus for the configured cluster as YAML. Return 0.

    No request is sent. The configuration has the path of the token's file and no token.

    Raises:
        NoCluster: no cluster is configured or running.
        DetcloudError: the address is not http or https, or the stored credentials cannot be read.
    """
    url = configured_url(arguments.url)
    if url is None:
        raise NoCluster("no cluster is configured and none runs here; name one with --url")
    write_data(render_yaml(scrape_configuration(url, arguments.token_file)))
    return 0


HANDLERS: Handlers = {
    "monitoring grafana": Handler(add_grafana_arguments, print_board),
    "monitoring prometheus": Handler(add_prometheus_arguments, print_scrape_configuration),
}
