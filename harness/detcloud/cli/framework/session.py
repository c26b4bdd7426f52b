"""The cluster that a command speaks to, and the experiment or trial that its arguments name."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import parse_id
from detcloud.client import Client, Experiment, Trial
from detcloud.client.endpoint import URL_VARIABLE, find_endpoint, is_configured
from detcloud.client.home import Home

# A user who has it set for `det` expects that cluster.
ORIGINAL_VARIABLE = "DET_MASTER"


def connect(arguments: Namespace, *, start: bool = False) -> Client:
    """Return a client of the configured cluster, which is closed after the command.

    With `start`, a local cluster is started when none is configured.

    Raises:
        DetcloudError: there is none, or it did not start.
    """
    endpoint = find_endpoint(arguments.url)
    is_named = is_configured(arguments.url)
    if not is_named and os.environ.get(ORIGINAL_VARIABLE):
        print(
            f"{ORIGINAL_VARIABLE} is not used: --url or {URL_VARIABLE} names the cluster",
            file=sys.stderr,
        )
    if endpoint is None and start and not is_named:
        # Imported here, since almost no command starts a cluster, and processes are slow to import.
        from detcloud.cli.local.server import start_server

        print("starting a local cluster ...", file=sys.stderr)
        start_server(Home.from_environment())
    client = Client(arguments.url)
    client.http.on_silence = _report_silence
    arguments.client = client
    return client


def _report_silence(address: str) -> None:
    print(f"waiting for an answer of {address} ...", file=sys.stderr, flush=True)


def add_experiment_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "experiment_id", type=parse_id, metavar="EXPERIMENT", help="the experiment's id"
    )


def load_experiment(arguments: Namespace) -> Experiment:
    """Fetch the experiment that `add_experiment_argument` names."""
    return connect(arguments).experiment(arguments.experiment_id)


def add_trial_argument(parser: ArgumentParser) -> None:
    parser.add_argument("trial_id", type=parse_id, metavar="TRIAL", help="the trial's id")


def load_trial(arguments: Namespace) -> Trial:
    """Fetch the trial that `add_trial_argument` names."""
    return connect(arguments).trial(arguments.trial_id)
