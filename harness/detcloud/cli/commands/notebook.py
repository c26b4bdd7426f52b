"""`detcloud notebook`: starts and opens JupyterLab on a machine of the cluster."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from detcloud.cli.commands.lost_runs import show_with_restarts
from detcloud.cli.commands.places import (
    add_restore_option,
    check_start,
    create_interactive_run,
    has_ended,
    open_place,
    read_location,
    wait_for_place,
)
from detcloud.cli.commands.run_creation import add_creation_options, show_new_run
from detcloud.cli.commands.run_description import describe_handler
from detcloud.cli.commands.run_verbs import add_id_argument, load_run, run_handlers
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED, OK
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.command import NOTEBOOK, Command
from detcloud.shared.errors import DetcloudError

IDLE_MINUTES = 60
"""The time without a byte after which the tunnel to a notebook closes."""
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(?P<port>\d{1,5})(?P<path>/[!-~]*)")


def add_start_arguments(parser: ArgumentParser) -> None:
    """Add the options of `start_notebook`: the options of `add_creation_options` and
    `--no-browser`. `--preview` of Determined ends with a usage error.
    """
    add_creation_options(parser)
    add_restore_option(parser)
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

    The address of JupyterLab on another machine leads through a tunnel. The command then runs until
    Ctrl-C or the end of the tunnel. If the machine is lost meanwhile, another notebook starts with
    the files.

    Raises:
        RefusedConfigError: the cluster refused the settings.
        DetcloudError: options exclude each other, a file or the address cannot be read, the cluster
            refuses a tunnel, or a request failed.
    """
    notebook = create_interactive_run(NOTEBOOK, arguments)

    def show(notebook: Command) -> int:
        return show_new_run(
            notebook,
            NOTEBOOK,
            lambda: _open(notebook, arguments),
            arguments,
            state="is starting",
            reopen=_reopen_text(notebook),
            check_start=lambda: check_start(notebook, NOTEBOOK),
        )

    return show_with_restarts(notebook, NOTEBOOK, show, arguments)


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

    The address of a notebook on another machine leads through a tunnel. The command then runs until
    the end of the tunnel, and returns FAILED unless the notebook has completed. Ctrl-C leaves the
    notebook running and returns INTERRUPTED.

    Raises:
        DetcloudError: no cluster is available, the id is unknown or not a notebook, the address
            cannot be read, the cluster refuses a tunnel, or a request failed.
    """
    notebook = load_run(NOTEBOOK, arguments)
    try:
        return _open(notebook, arguments)
    except KeyboardInterrupt:
        print(
            f"\nnotebook {notebook.id} continues; {_reopen_text(notebook)}, end it with "
            f"`detcloud notebook kill {notebook.id}`",
            file=sys.stderr,
        )
        return INTERRUPTED


def notebook_address(fields: dict[str, Any], port: int | None = None) -> str:
    """Return the address of a notebook, token included, from the fields of the location file.

    Args:
        fields: the fields of the file, which the notebook's program has written.
        port: the port of this machine that leads to the notebook. None for the port in the file.

    Raises:
        DetcloudError: the fields have no address on 127.0.0.1.
    """
    found = _ADDRESS.fullmatch(str(fields.get("url")))
    if found is None:
        raise DetcloudError("the notebook's file has no address on 127.0.0.1")
    return f"http://127.0.0.1:{port or found['port']}{found['path']}"


def _add_browser_option(parser: ArgumentParser) -> None:
    """Add `--no-browser`, False by default, which `_open` reads."""
    parser.add_argument("--no-browser", action="store_true", help="print the address only")


def _open(notebook: Command, arguments: Namespace) -> int:
    """Wait for the notebook, print the address, and open the address in a browser unless
    `--no-browser` is given. Carry the connections of a notebook on another machine.

    The wait has no limit. Without a browser, a notice is printed to stderr. Return FAILED if the
    notebook has ended, after printing the reason to stderr. Otherwise return OK.

    Raises:
        DetcloudError: the address cannot be read, the cluster refuses a tunnel, or a request
            failed.
    """
    place = wait_for_place(notebook, NOTEBOOK)
    if place is None:
        return FAILED
    fields = read_location(arguments.client, place)
    if fields is None:
        return _carry(notebook, place, arguments)
    _show_address(notebook_address(fields), arguments)
    return OK


def _carry(notebook: Command, place: dict[str, Any], arguments: Namespace) -> int:
    """Show the address of a notebook on another machine, and carry connections through a tunnel.

    Return at the end of the tunnel: OK if the notebook has completed, otherwise FAILED. The reason
    is printed to stderr.

    Raises:
        DetcloudError: the address cannot be read, the cluster refuses a tunnel, or a request
            failed.
    """
    idle_seconds = IDLE_MINUTES * 60
    with open_place(arguments.client, notebook, place, idle_seconds) as tunnel:
        address = notebook_address(tunnel.read_location(), tunnel.local_port)
        print(
            f"the address leads to notebook {notebook.id} through a tunnel; Ctrl-C closes the "
            "tunnel and leaves the notebook running",
            file=sys.stderr,
        )
        _show_address(address, arguments)
        print(f"tunnel: {sanitize(tunnel.wait())}", file=sys.stderr)
    if has_ended(notebook, NOTEBOOK):
        return OK if notebook.state == "COMPLETED" else FAILED
    print(f"notebook {notebook.id} continues; {_reopen_text(notebook)}", file=sys.stderr)
    return FAILED


def _show_address(url: str, arguments: Namespace) -> None:
    """Print an address, and open the address in a browser unless `--no-browser` is given.

    Without a browser, print a notice to stderr.
    """
    print(url, flush=True)
    if not arguments.no_browser:
        # Imported here, since few commands need it.
        import webbrowser

        if not webbrowser.open(url):
            print("no browser was found; open this address in one", file=sys.stderr)


def _reopen_text(notebook: Command) -> str:
    return f"open it with `detcloud notebook open {notebook.id}`"


HANDLERS: Handlers = {
    "notebook start": Handler(add_start_arguments, start_notebook),
    "notebook open": Handler(add_open_arguments, open_notebook),
    "notebook describe": describe_handler(NOTEBOOK),
    **run_handlers(NOTEBOOK),
}
