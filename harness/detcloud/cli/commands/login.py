"""`detcloud login`: signs in to a cluster, and stores the token and the server's pin."""

from __future__ import annotations

import os
import socket
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing
from getpass import getpass
from typing import Any

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_replaced_option
from detcloud.cli.rendering.table import cell_text
from detcloud.client import Client
from detcloud.client.endpoint import (
    TOKEN_VARIABLE,
    configured_url,
    pin_known_server,
    store_credentials,
)
from detcloud.shared.address_list import split_addresses
from detcloud.shared.certificate_check import find_untrusted_pin
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport
from detcloud.shared.pins import find_pin, parse_pin, pin_server

CHECK_SECONDS = 15.0


def add_login_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `log_in`: the list `words` with URL and TOKEN, `--pin` and `--code`.

    The options are None by default. `--provider` of Determined ends with a usage error.
    """
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="the address, which begins with http (default: --url, or the configured cluster), and "
        f"the token, or - to read the token from stdin (default: {TOKEN_VARIABLE}, or prompt)",
    )
    parser.add_argument(
        "--pin",
        metavar="sha256:DIGEST",
        help="accept only the certificate with this digest, which `detcloud server` printed",
    )
    parser.add_argument(
        "--code",
        metavar="CODE",
        help="sign in with a code of `detcloud server`, which works once, instead of a token",
    )
    add_replaced_option(parser, "-p", "--provider", "--headless", instead="only a token is needed")


def log_in(arguments: Namespace) -> int:
    """Store a token and the cluster's address in `credentials.json` of the data folder, if the
    cluster accepts the token. Return 0.

    The address is the argument, `--url`, or the configured cluster. The token is the argument, a
    line of stdin for `-`, or DETCLOUD_TOKEN; otherwise a terminal prompts for the token. With
    `--code`, the cluster creates a token and the code is used up.

    The server's certificate must have the pin of `--pin` or the stored pin. Without a pin, a
    known authority must have signed the certificate. Otherwise the digest is shown, and a terminal
    asks whether to trust the certificate from now on.

    A stored token is replaced, and later commands use this cluster. The user, the role and the file
    are printed. The client is stored in `arguments.client`, and `main` closes the client.

    Raises:
        DetcloudError: no cluster or no token was given, the cluster does not answer, the
            certificate is not trusted, or the file cannot be written. Nothing is stored.
        ApiError: the cluster refused the token or the code. Nothing is stored.
    """
    url, word = _split_words(arguments.words)
    url = configured_url(url or arguments.url)
    if url is None:
        raise DetcloudError(
            "no cluster is named: use --url, or `detcloud login https://detcloud.example`"
        )
    pin = _pin_server(url, arguments.pin)
    if arguments.code is not None:
        if word is not None:
            raise DetcloudError("give either a token or --code")
        token = _exchange_code(url, arguments.code)
    else:
        token = _read_token(word)
    arguments.client = Client(url, token)
    identity = arguments.client.whoami()
    path = store_credentials(url, token, pin)
    user = cell_text(identity["user"])
    print(f"{user} ({identity['role']}) at {url}, stored in {path}")
    return 0


def _split_words(words: list[str]) -> tuple[str | None, str | None]:
    """Return the address and the token of the command line.

    A missing word is None.

    Raises:
        DetcloudError: too many words were given, or two addresses.
    """
    urls = [word for word in words if word.startswith(("http://", "https://"))]
    others = [word for word in words if word not in urls]
    if len(urls) > 1 or len(others) > 1:
        raise DetcloudError("give an address and a token at most: detcloud login [URL] [TOKEN]")
    return (urls[0] if urls else None), (others[0] if others else None)


def _pin_server(url: str, pin: str | None) -> str | None:
    """Check the certificate of the first server at `url`, and return the pin to store.

    A pin lets this process accept only the pinned certificate. Return None for http, and if a known
    authority has signed the certificate. On a terminal, ask whether to trust a certificate of an
    unknown authority.

    Args:
        pin: the pin of `--pin`, or None.

    Raises:
        DetcloudError: the pin is invalid, the server does not answer, or the certificate is not
            trusted.
    """
    if pin is not None:
        pin_server(url, pin)
        return parse_pin(pin)
    if not url.startswith("https://"):
        return None
    pin_known_server(url)
    first = split_addresses(url)[0]
    if (known := find_pin(first)) is not None:
        return known
    try:
        found = find_untrusted_pin(first, CHECK_SECONDS)
    except (OSError, ValueError) as error:
        raise DetcloudError(f"{first} could not be reached: {error}") from None
    if found is None:
        return None
    text = f"no known authority has signed the certificate of {first}; its digest is\n  {found}"
    if not sys.stdin.isatty():
        raise DetcloudError(
            f"{text}\ncompare the digest with the line that `detcloud server` printed, and add "
            f"--pin {found}"
        )
    print(f"{text}\nThe server printed its digest at the start.", file=sys.stderr)
    print("Trust this certificate from now on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DetcloudError("the certificate is not trusted; nothing was stored")
    pin_server(url, found)
    return found


def _exchange_code(url: str, code: str) -> str:
    """Return a new token for the user of a sign-in code. The code is used up.

    Raises:
        DetcloudError: the cluster refused the code or did not answer.
    """
    body = {"code": code, "description": f"login on {socket.gethostname()}"[:200]}
    with closing(Transport(url, None)) as http:
        # A second attempt could not use the code again.
        made: dict[str, Any] = http.request(
            "POST", "/api/v1/sign-in-codes/token", body, retry=False
        )
    return str(made["token"])


def _read_token(word: str | None) -> str:
    """Return the token of the command line, of stdin for `-`, or of DETCLOUD_TOKEN, without blanks
    at the ends.

    Without an argument and the variable, prompt for the token on a terminal, without echo. The wait
    for input has no limit.

    Args:
        word: the argument of the command line; None if missing.

    Raises:
        DetcloudError: no token was given, for example an empty DETCLOUD_TOKEN, or the token has
            blanks or invisible characters.
    """
    if word == "-":
        word = sys.stdin.readline()
    elif word is None:
        word = os.environ.get(TOKEN_VARIABLE)
    if word is None and sys.stdin.isatty():
        word = getpass("token: ")
    token = (word or "").strip()
    if not token or not token.isprintable() or " " in token:
        raise DetcloudError("no token was given; pass it, or - to read it from stdin")
    return token


HANDLERS: Handlers = {
    "token login": Handler(add_login_arguments, log_in),
}
