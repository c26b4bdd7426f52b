"""`detcloud notebook`: runs JupyterLab on a cluster on this machine, and lists and ends it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from detcloud.cli.commands.command import (
    add_config_arguments,
    add_creation_options,
    add_id_argument,
    add_kill_arguments,
    add_list_arguments,
    add_logs_arguments,
    add_priority_arguments,
    create_run,
    kill_runs,
    list_runs,
    load_run,
    overrides_of,
    print_config,
    print_run_log,
    set_priority,
    show_new_run,
)
from detcloud.cli.commands.places import check_local, read_location, wait_for_place
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.framework.session import connect
from detcloud.client.command import NOTEBOOK, Command, create_interactive
from detcloud.shared.errors import DetcloudError


def add_start_arguments(parser: ArgumentParser) -> None:
    add_creation_options(parser)
    _add_browser_option(parser)
    add_replaced_option(
        parser,
        "--preview",
        instead="`detcloud notebook config ID` prints its settings",
    )


def start_notebook(arguments: Namespace) -> int:
    """Start JupyterLab, print its address and open it. Ctrl-C leaves it running."""
    notebook = _create(arguments)
    return show_new_run(
        notebook,
        NOTEBOOK,
        lambda: _open(notebook, arguments),
        arguments,
        state="is starting",
        reopen=f"open it with `detcloud notebook open {notebook.id}`",
    )


def add_open_arguments(parser: ArgumentParser) -> None:
    add_id_argument(parser)
    _add_browser_option(parser)


def open_notebook(arguments: Namespace) -> int:
    """Print the address of a notebook, and open it in a browser where there is one."""
    return _open(load_run(NOTEBOOK, arguments), arguments)


def read_address(place: dict[str, Any]) -> str:
    """The address of a notebook with its token, from the file that the notebook has reported.

    Raises:
        DetcloudError: it is not on this machine, or not of this user.
    """
    url = read_location(place, NOTEBOOK).get("url")
    if not isinstance(url, str) or not url.startswith("http://127.0.0.1:"):
        raise DetcloudError(f"{place.get('file')} has no address of this machine")
    return url


def _add_browser_option(parser: ArgumentParser) -> None:
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def _create(arguments: Namespace) -> Command:
    """Send the files and the settings.

    Raises:
        RefusedConfigError: the cluster refused the settings; it has a line for each problem.
        DetcloudError: the cluster is not on this machine.
    """
    overrides = overrides_of(arguments)
    client = connect(arguments, start=True)
    check_local(client, NOTEBOOK)
    return create_run(partial(create_interactive, client, NOTEBOOK), NOTEBOOK, overrides, arguments)


def _open(notebook: Command, arguments: Namespace) -> int:
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
    "notebook list": Handler(add_list_arguments, partial(list_runs, NOTEBOOK)),
    "notebook open": Handler(add_open_arguments, open_notebook),
    "notebook logs": Handler(add_logs_arguments, partial(print_run_log, NOTEBOOK)),
    "notebook kill": Handler(add_kill_arguments, partial(kill_runs, NOTEBOOK)),
    "notebook config": Handler(add_config_arguments, partial(print_config, NOTEBOOK)),
    "notebook set priority": Handler(add_priority_arguments, partial(set_priority, NOTEBOOK)),
}
