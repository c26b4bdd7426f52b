"""Notebooks and shells: creation, and the places where they listen.

A place is the part of a trial's `environment` that a notebook or shell reports: its host and a file
with its address.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.cli.commands.run_creation import create_run, overrides_of
from detcloud.cli.commands.start_progress import StartProgress
from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.session import connect
from detcloud.cli.framework.sigterm import exit_at_sigterm
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import shorten_message
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client, Trial
from detcloud.client.command import Command, create_interactive
from detcloud.client.home import Home
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError
from detcloud.shared.tunnel.services import LOCATION_BYTES_MAX

if TYPE_CHECKING:
    from detcloud.cli.commands.place_tunnels import PlaceTunnel

POLLING_SECONDS = 0.5
# A free slot is assigned within a second, so a run that has no slot after these polls is queued.
QUEUED_POLLS = 8
STARTING_POLLS = 120
# Longer than the grace period of a stop.
STOPPING_POLLS = 60


def create_interactive_run(kind: str, arguments: Namespace) -> Command:
    """Create a notebook or shell with the options of `add_creation_options`, and return the new
    run.

    A local cluster is started if no cluster is configured or running. The client is stored in
    `arguments.client`, and `main` closes the client. A progress line on stderr shows the upload.

    Args:
        kind: `notebook` or `shell`.

    Raises:
        RefusedConfigError: the cluster refused the settings. The message has a line for each
            problem.
        DetcloudError: no cluster is available, options exclude each other, a file cannot be read,
            or a request failed.
        KeyboardInterrupt: after a hint on stderr, because the run may have been created.
    """
    overrides, source = overrides_of(arguments), arguments.restored_from
    if source is not None and (arguments.context is not None or arguments.includes):
        raise DetcloudError("--from restores files, and cannot be combined with --context")
    client = connect(arguments, start=True)
    if source is not None:
        _await_last_snapshot(client, source)
    create = partial(create_interactive, client, kind, restored_from=source)
    return create_run(create, kind, overrides, arguments)


def _await_last_snapshot(client: Client, source: int) -> None:
    """Wait until a stopping run has ended, because the last snapshot is saved at the end.

    The wait has a limit of STOPPING_POLLS. An unknown run is ignored: the submission refuses it.

    Raises:
        DetcloudError: a request failed.
    """
    try:
        run = client.experiment(source)
    except ApiError:
        return
    for _ in range(STOPPING_POLLS):
        if not run.state.startswith("STOPPING_"):
            return
        time.sleep(POLLING_SECONDS)
        run.refresh()


def add_restore_option(parser: ArgumentParser) -> None:
    """Add the option `--from ID`, stored as the integer `restored_from`."""
    parser.add_argument(
        "--from",
        dest="restored_from",
        type=parse_id,
        metavar="ID",
        help="start with the files of this notebook or shell, as last saved",
    )


def wait_for_place(run: Command, kind: str) -> dict[str, Any] | None:
    """Wait until a notebook or shell has reported a place, and return the place: a map with
    `host`, `port` and `file`.

    The wait has no limit, for example while the run is queued. Stderr shows the reason of the wait.
    The fields of `run` are updated. Return None if the run has ended, after printing the state and
    the reason to stderr.

    Args:
        kind: `notebook` or `shell`.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    with StartProgress(run, kind) as progress:
        while not _is_over(run):
            trial = run.trial()
            place = _find_place(trial, kind)
            if place is not None:
                return place
            progress.show(trial)
            time.sleep(POLLING_SECONDS)
    _print_end(run, kind)
    return None


def check_start(run: Command, kind: str) -> int:
    """Wait until a new notebook or shell runs, waits for a slot, or has ended. Return an exit code.

    The code is FAILED if the run has ended, for example because a program is not installed.
    Otherwise, and after a minute without a result, the code is OK. The reason of an end, and a
    queued run, are printed to stderr. The fields of `run` are updated.

    Args:
        kind: `notebook` or `shell`.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
    queued_polls = 0
    for _ in range(STARTING_POLLS):
        if has_ended(run, kind):
            return FAILED
        trial = run.trial()
        if _find_place(trial, kind) is not None:
            return OK
        allocation = None if trial is None else trial.data["allocation"]
        if allocation is not None and allocation["state"] == "PULLING":
            return OK
        queued_polls = 0 if allocation is not None else queued_polls + 1
        if queued_polls == QUEUED_POLLS:
            print(f"{kind} {run.id} waits for a slot; see `detcloud job list`", file=sys.stderr)
            return OK
        time.sleep(POLLING_SECONDS)
    return OK


def has_ended(run: Command, kind: str) -> bool:
    """Fetch the fields of a run, and return whether the run has ended. Print the state and the
    reason of an end to stderr, on every call.

    Raises:
        DetcloudError: the request failed.
    """
    if not _is_over(run):
        return False
    _print_end(run, kind)
    return True


def _is_over(run: Command) -> bool:
    """Fetch the fields of a run, and return whether the run has ended.

    Raises:
        DetcloudError: the request failed.
    """
    run.refresh()
    return bool(run.has_ended)


def _print_end(run: Command, kind: str) -> None:
    """Print the state of an ended run and the reason to stderr."""
    message = shorten_message(run.message) if run.message else ""
    reason = f": {sanitize(message)}" if message else ""
    print(
        f"{state_sentence(f'{kind} {run.id}', run.state)}{reason}\n"
        f"see `detcloud {kind} logs {run.id}`",
        file=sys.stderr,
    )


def _find_place(trial: Trial | None, kind: str) -> dict[str, Any] | None:
    """Return the place that the trial of a notebook or shell has reported. None without a trial or
    place.

    The fields of `trial` are fetched again from the cluster.

    Raises:
        DetcloudError: the request failed.
    """
    if trial is None:
        return None
    trial.refresh()
    place = (trial.data.get("environment") or {}).get(kind)
    return place if isinstance(place, dict) else None


def read_location(client: Client, place: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the file that the place of a notebook or shell names, secrets included.

    Return None if the client's cluster is not the running local cluster of the home folder, and if
    this user cannot read the file here. Another cluster's paths may name foreign files.
    """
    if not _is_local(client):
        return None
    try:
        with Path(str(place.get("file"))).open("rb") as file:
            fields = json.loads(file.read(LOCATION_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def open_place(
    client: Client,
    run: Command,
    place: dict[str, Any],
    idle_seconds: float,
    *,
    services: Sequence[str] = (),
    on_notice: Callable[[], None] | None = None,
) -> PlaceTunnel:
    """Open a tunnel to the place of a notebook or shell on another machine.

    The handler of SIGTERM is replaced: the signal closes the tunnel, and ends the process with 128
    + the signal's number.

    Args:
        client: the connection to the cluster.
        run: the notebook or shell, which runs.
        place: the place that the run has reported, as `wait_for_place` returns.
        idle_seconds: the time without bytes after which the tunnel closes. 0 for never.
        services: further services of the allocation that the tunnel may open.
        on_notice: called in a thread after a sentence of the machine, for example before the
            machine's end.

    Raises:
        DetcloudError: the run has no trial, the cluster refuses the tunnel, or a request failed.
    """
    # Imported here, because a notebook or shell on this machine needs no tunnel: TLS and the
    # protocol of tunnels would take 40 ms.
    from detcloud.cli.commands.place_tunnels import PlaceTunnel

    trial = run.trial()
    if trial is None:
        raise DetcloudError(f"{run.id} has no trial")
    exit_at_sigterm()
    return PlaceTunnel(
        client, trial.id, place, idle_seconds, services=services, on_notice=on_notice
    )


def warnings_of_limits(client: Client, run: Command) -> AbstractContextManager[None]:
    """Return a block in which stderr shows the warnings before the end of a run with limits.

    Only for a run whose terminal needs no tunnel. Nothing happens for a run without limits.

    Raises:
        DetcloudError: a request failed.
    """
    has_limits = any(run.config.get(name) is not None for name in ("idle_timeout", "max_duration"))
    trial = run.trial() if has_limits else None
    if trial is None:
        return nullcontext()
    # Imported here, because a shell without limits needs no tunnel.
    from detcloud.cli.commands.place_tunnels import print_notices

    return print_notices(client, trial.id)


def _is_local(client: Client) -> bool:
    """Return whether the client's cluster is the running local cluster of the home folder.

    No request is sent.
    """
    record = Home.from_environment().running_server()
    return record is not None and record.url.rstrip("/") == client.url
