"""`detcloud open` opens the web page with a sign-in link. `detcloud page export` copies the page's
files.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect


def add_open_arguments(parser: ArgumentParser) -> None:
    """Add the options of `open_page`: `--no-browser`, and `--page`, parsed by `parse_page_url`,
    None by default.
    """
    parser.add_argument(
        "--no-browser", action="store_true", help="only print the link, for use on another machine"
    )
    parser.add_argument(
        "--page",
        metavar="URL",
        type=parse_page_url,
        help="the page that `detcloud page export` wrote, at this address",
    )


def open_page(arguments: Namespace) -> int:
    """Print a sign-in link for the web page, and open the link in a browser unless `--no-browser`
    is given. Return 0.

    The cluster creates the link, which works once, within five minutes. `--page` leads the link to
    a copy of the page. Without a browser, a notice is printed to stderr.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    link = connect(arguments).sign_in_link(arguments.page)
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


def parse_page_url(text: str) -> str:
    """Return the address of a web page unchanged. The page is not fetched.

    Raises:
        ArgumentTypeError: the text is not an http or https address with a host.
    """
    from argparse import ArgumentTypeError
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ArgumentTypeError(f"expected an address like https://page.example.com/, not {text!r}")
    return text


def add_export_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `write_page_copy`: the path DIR, stored as `folder`, and `--api`, None
    by default.
    """
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a new or empty folder, or a folder with an earlier copy",
    )
    parser.add_argument(
        "--api",
        metavar="URL",
        help="the address at which the page finds the API (default: the cluster's)",
    )


def write_page_copy(arguments: Namespace) -> int:
    """Write the files of the web page to a folder, print the folder, and return 0.

    The folder is created if needed. Files of an earlier copy are overwritten, and other files stay.
    A notice on `page_origins` is printed to stderr. After an error, written files remain.

    Raises:
        DetcloudError: the folder has files but no earlier copy, the address of `--api` is wrong,
            the cluster has no page, or no cluster is available. Or a request failed.
        OSError: a file cannot be written.
    """
    # Imported here, since no other command needs it.
    from detcloud.client.page_export import export_page

    export_page(connect(arguments), arguments.folder, arguments.api)
    print(arguments.folder)
    print(
        "page_origins in the cluster configuration must list the origin that serves the page",
        file=sys.stderr,
    )
    return 0


HANDLERS: Handlers = {
    "cluster open": Handler(add_open_arguments, open_page),
    "page export": Handler(add_export_arguments, write_page_copy),
}
