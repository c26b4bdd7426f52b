"""The cluster that a command speaks to."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace

from detcloud.client import Cluster
from detcloud.client.endpoint import find_endpoint, is_configured
from detcloud.client.home import Home

DIGITS_MAX = 12
ID_MAX = 10**DIGITS_MAX - 1


def cluster_of(arguments: Namespace, *, start: bool = False) -> Cluster:
    """The cluster configured; with `start`, a local one when none is. Closed after the command.

    Raises:
        DetcloudError: there is none, or it did not start.
    """
    endpoint = find_endpoint(arguments.url)
    if endpoint is None and start and not is_configured(arguments.url):
        from detcloud.cli.server import start as start_server

        print("starting a local cluster ...", file=sys.stderr)
        start_server(Home.from_environment())
    cluster = Cluster.from_environment(arguments.url)
    arguments.cluster = cluster
    return cluster


def identifier(text: str) -> int:
    """Type of an experiment's or trial's id on the command line."""
    if not _is_whole(text) or not 0 < int(text) <= ID_MAX:
        raise ArgumentTypeError(f"{text!r} is no id; expected a whole number such as 12")
    return int(text)


def count(text: str) -> int:
    """Type of a number of things on the command line: 0 or more."""
    if not _is_whole(text):
        raise ArgumentTypeError(f"{text!r} is no count; expected a whole number such as 12")
    return int(text)


def seconds(text: str) -> float:
    """Type of a duration on the command line: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ArgumentTypeError(f"{text!r} is no duration; expected seconds above 0")
    return value


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
