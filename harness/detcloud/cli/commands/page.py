"""`detcloud open`: the web page in a browser, signed in by a code that is good once."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect


def add_open_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the link, for use on another machine"
    )


def open_page(arguments: Namespace) -> int:
    """Print the page's link, and open it in a browser where there is one."""
    link = connect(arguments).sign_in_link()
    print(link)
    if not arguments.no_browser:
        # Imported here, since no other command needs it.
        import webbrowser

        if not webbrowser.open(link):
            print(
                "no browser was found; the link works once, within five minutes",
                file=sys.stderr,
            )
    return 0


HANDLERS: Handlers = {
    "cluster open": Handler(add_open_arguments, open_page),
}
