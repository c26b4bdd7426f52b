"""The cluster that a command speaks to."""

from __future__ import annotations

import sys
from argparse import Namespace

from detcloud.client import Client
from detcloud.client.endpoint import find_endpoint, is_configured
from detcloud.client.home import Home


def client_of(arguments: Namespace, *, start: bool = False) -> Client:
    """The cluster configured; with `start`, a local one when none is. Closed after the command.

    Raises:
        DetcloudError: there is none, or it did not start.
    """
    endpoint = find_endpoint(arguments.url)
    if endpoint is None and start and not is_configured(arguments.url):
        from detcloud.cli.server import start as start_server

        print("starting a local cluster ...", file=sys.stderr)
        start_server(Home.from_environment())
    client = Client(arguments.url)
    arguments.client = client
    return client
