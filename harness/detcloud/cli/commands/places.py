"""Notebooks and shells of a cluster on this machine: their creation, and where each listens."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from detcloud.cli.commands.command import create_run, overrides_of
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.table import shorten_message
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client
from detcloud.client.command import Command, create_interactive
from detcloud.client.home import Home
from detcloud.shared.errors import DetcloudError

POLLING_SECONDS = 0.5
LOCATION_BYTES_MAX = 4096


def create_local_run(kind: str, arguments: Namespace) -> Command:
    """Create a notebook or shell with the options of `add_creation_options`.

    Raises:
        RefusedConfigError: the cluster refused the settings; it has a line for each problem.
        DetcloudError: the cluster is not on this machine.
    """
    overrides = overrides_of(arguments)
    client = connect(arguments, start=True)
    _check_local(client, kind)
    return create_run(partial(create_interactive, client, kind), kind, overrides, arguments)


def wait_for_place(run: Command, kind: str) -> dict[str, Any] | None:
    """Wait until a notebook or shell has reported where it is; None when it has ended, which is
    said on stderr.
    """
    while True:
        run.refresh()
        if run.has_ended:
            message = shorten_message(run.message) if run.message else ""
            reason = f": {sanitize(message)}" if message else ""
            print(
                f"{kind} {run.id} ended: {run.state}{reason}\nsee `detcloud {kind} logs {run.id}`",
                file=sys.stderr,
            )
            return None
        trial = run.trial()
        if trial is not None:
            trial.refresh()
            place = (trial.data.get("environment") or {}).get(kind)
            if isinstance(place, dict):
                return place
        time.sleep(POLLING_SECONDS)


def read_location(place: dict[str, Any], kind: str) -> dict[str, Any]:
    """The secret fields of a notebook or shell, from the file that it has reported.

    Raises:
        DetcloudError: it is not on this machine, or not of this user.
    """
    path = Path(str(place.get("file")))
    try:
        with path.open("rb") as file:
            fields = json.loads(file.read(LOCATION_BYTES_MAX))
    except (OSError, ValueError):
        fields = None
    if not isinstance(fields, dict):
        raise DetcloudError(
            f"{path} on {place.get('host')} has the {kind}'s address and cannot be read here: "
            "open it there, as the user who runs the agent"
        )
    return fields


def _check_local(client: Client, kind: str) -> None:
    """Check that the cluster is one of this machine, which can be connected to.

    Raises:
        DetcloudError: it is not.
    """
    record = Home.from_environment().running_server()
    if record is None or record.url.rstrip("/") != client.url:
        raise DetcloudError(
            f"{client.url} is not a cluster on this machine, and machines of other clusters accept "
            f"no connections: start the {kind} on one of your own (`detcloud up`), or run a "
            "program there with `detcloud command run`"
        )
