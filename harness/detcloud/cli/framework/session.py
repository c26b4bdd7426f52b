"""The cluster of a command, and the experiment or trial that the command's arguments name."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import parse_id
from detcloud.client import Client, Experiment, Trial
from detcloud.client.endpoint import URL_VARIABLE, find_endpoint, is_configured
from detcloud.client.home import Home

# The variable with the cluster's address for `det`, which detcloud does not read.
ORIGINAL_VARIABLE = "DET_MASTER"


def connect(arguments: Namespace, *, start: bool = False) -> Client:
    """Return a client of the configured cluster, and store the client in `arguments.client`.

    `main` closes the client after the command. No request is sent. Notices are printed to stderr: a
    local cluster starts, DET_MASTER is set but not used, and later that a cluster is slow to
    answer. The notice on DET_MASTER appears only if no detcloud cluster is configured.

    Args:
        arguments: `url`, the value of `--url` or None.
        start: whether to start a local cluster if no cluster is configured or running.

    Raises:
        NoCluster: no cluster is configured or running, and `start` is False.
        DetcloudError: the token or address is unusable, or the local cluster did not start.
    """
    endpoint = find_endpoint(arguments.url)
    is_named = is_configured(arguments.url)
    if not is_named and os.environ.get(ORIGINAL_VARIABLE):
        print(
            f"{ORIGINAL_VARIABLE} is not used: --url or {URL_VARIABLE} names the cluster",
            file=sys.stderr,
        )
    if endpoint is None and start and not is_named:
        # Imported here, because few commands start a cluster, and the import takes time.
        from detcloud.cli.local.server import start_server

        print("starting a local cluster ...", file=sys.stderr)
        start_server(Home.from_environment())
    client = Client(arguments.url)
    client.http.on_silence = _report_silence
    arguments.client = client
    return client


def _report_silence(address: str) -> None:
    """Print to stderr that the cluster at an address has not answered yet."""
    print(f"waiting for {address} to answer ...", file=sys.stderr, flush=True)


def add_experiment_argument(parser: ArgumentParser) -> None:
    """Add the required argument EXPERIMENT, parsed by `parse_id` and stored as the integer
    `experiment_id`.
    """
    parser.add_argument(
        "experiment_id", type=parse_id, metavar="EXPERIMENT", help="the experiment's id"
    )


def load_experiment(arguments: Namespace) -> Experiment:
    """Fetch the experiment of `add_experiment_argument` from the configured cluster.

    The client is stored in `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such experiment, or the request
            failed.
    """
    return connect(arguments).experiment(arguments.experiment_id)


def add_trial_argument(parser: ArgumentParser) -> None:
    """Add the required argument TRIAL, parsed by `parse_id` and stored as the integer
    `trial_id`.
    """
    parser.add_argument("trial_id", type=parse_id, metavar="TRIAL", help="the trial's id")


def load_trial(arguments: Namespace) -> Trial:
    """Fetch the trial of `add_trial_argument` from the configured cluster.

    The client is stored in `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: no cluster is available, the cluster has no such trial, or the request
            failed.
    """
    return connect(arguments).trial(arguments.trial_id)
