"""`detcloud notebook`: starts and opens JupyterLab on a cluster on this machine."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.commands.places import (
    check_start,
    create_local_run,
    read_location,
    wait_for_place,
)
from detcloud.cli.commands.run_creation import add_creation_options, show_new_run
from detcloud.cli.commands.run_verbs import add_id_argument, load_run, run_handlers
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.options import add_replaced_option
from detcloud.client.command import NOTEBOOK, Command
from detcloud.shared.errors import DetcloudError


def add_start_arguments(parser: ArgumentParser) -> None:
    """Add the options of `start_notebook`: the options of `add_creation_options` and
    `--no-browser`. `--preview` of Determined ends with a usage error.
    """
    add_creation_options(parser)
    _add_browser_option(parser)
    add_replaced_option(
        parser,
        "--preview",
        instead="`detcloud notebook config ID` prints its settings",
    )


def start_notebook(arguments: Namespace) -> int:
    """Start JupyterLab, print the address, and open the address in a browser unless `--no-browser`
    is given.

    Return OK, or FAILED if the notebook has ended. A local cluster is started if no cluster is
    configured or running. Files of `--context` and `--include` are uploaded. The wait for a free
    slot has no limit. Warnings and notices are printed to stderr. Ctrl-C leaves JupyterLab running
    and returns INTERRUPTED. With `--detach`, print the id, wait for the start for at most a minute,
    and open no browser.

    Raises:
        RefusedConfigError: the cluster refused the settings.
        DetcloudError: the cluster is not on this machine, options exclude each other, a file or the
            address cannot be read, or a request failed.
    """
    notebook = create_local_run(NOTEBOOK, arguments)
    return show_new_run(
        notebook,
        NOTEBOOK,
        lambda: _open(notebook, arguments),
        arguments,
        state="is starting",
        reopen=f"open it with `detcloud notebook open {notebook.id}`",
        check_start=lambda: check_start(notebook, NOTEBOOK),
    )


def add_open_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `open_notebook`: ID and `--no-browser`."""
    add_id_argument(parser)
    _add_browser_option(parser)


def open_notebook(arguments: Namespace) -> int:
    """Print the address of a notebook, token included, and open the address in a browser unless
    `--no-browser` is given.

    Wait without a time limit until the notebook has reported an address. Without a browser, a
    notice is printed to stderr. Return FAILED if the notebook has ended, after printing the reason
    to stderr. Otherwise return OK.

    Raises:
        DetcloudError: no cluster is available, the id is unknown or not a notebook, the address
            cannot be read, or a request failed.
    """
    return _open(load_run(NOTEBOOK, arguments), arguments)


def read_address(place: dict[str, Any]) -> str:
    """Return the address of a notebook, token included, from the local file that the place names.

    Args:
        place: the place that the notebook has reported, as `wait_for_place` returns.

    Raises:
        DetcloudError: the file cannot be read on this machine by this user, or has no address on
            127.0.0.1.
    """
    url = read_location(place, NOTEBOOK).get("url")
    if not isinstance(url, str) or not url.startswith("http://127.0.0.1:"):
        raise DetcloudError(f"{place.get('file')} has no address of this machine")
    return url


def _add_browser_option(parser: ArgumentParser) -> None:
    """Add `--no-browser`, False by default, which `_open` reads."""
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def _open(notebook: Command, arguments: Namespace) -> int:
    """Wait for the notebook, print the address, and open the address in a browser unless
    `--no-browser` is given.

    The wait has no limit. Without a browser, a notice is printed to stderr. Return FAILED if the
    notebook has ended, after printing the reason to stderr. Otherwise return OK.

    Raises:
        DetcloudError: the file with the address cannot be read, or a request failed.
    """
    place = wait_for_place(notebook, NOTEBOOK)
    if place is None:
        return FAILED
    url = read_address(place)
    print(url)
    if not arguments.no_browser:
        # Imported here, since few commands need it.
        import webbrowser

        if not webbrowser.open(url):
            print("no browser was found; open this address in one", file=sys.stderr)
    return OK


HANDLERS: Handlers = {
    "notebook start": Handler(add_start_arguments, start_notebook),
    "notebook open": Handler(add_open_arguments, open_notebook),
    **run_handlers(NOTEBOOK),
}
