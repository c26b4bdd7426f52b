"""Commands on tokens and on who uses them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from getpass import getpass

from detcloud import DetcloudError
from detcloud.cli.options import count, foreign_option, identifier
from detcloud.cli.output import add_output_options, print_items, print_record, print_value
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, cell_text, field, time_column
from detcloud.client import Client, Token
from detcloud.client.endpoint import TOKEN_VARIABLE, forget, known_url, remember

COLUMNS = (
    field("ID", "id"),
    field("User", "user"),
    field("Role", "role"),
    field("Resource pool", "resource_pool", spare=3),
    field("Description", "description", spare=1),
    time_column("Created", "created_ms", spare=2),
    time_column("Expires", "expires_ms"),
    Column("Revoked", lambda token: "yes" if token["revoked"] else "no"),
)
IDENTITY_COLUMNS = (field("User", "user"), field("Role", "role"), field("Cluster", "url"))


def create_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("user", nargs="?", metavar="USER", help="whose (default: your own)")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--role", choices=("user", "admin"), help="what it may do")
    role.add_argument(
        "--join", metavar="POOL", help="it lets agents join this resource pool, and nothing else"
    )
    parser.add_argument("-d", "--description", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "-e",
        "--expires-days",
        "--expiration-days",
        type=count,
        metavar="DAYS",
        help="how long it works, 1 to 365",
    )
    add_output_options(parser, csv=False)


def create(arguments: Namespace) -> int:
    """Prints the token alone, so that a script can keep it."""
    token = client_of(arguments).create_token(
        arguments.user,
        role="join" if arguments.join else arguments.role,
        resource_pool=arguments.join,
        description=arguments.description,
        expires_days=arguments.expires_days,
    )
    if arguments.form != "text":
        print_value(token.data, arguments.form)
        return 0
    print(token.token, flush=True)
    print(
        f"token {token.id} of {cell_text(token.user)}; keep it, it is shown this once",
        file=sys.stderr,
    )
    return 0


def listing_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("user", nargs="?", metavar="USER", help="only this user's")
    parser.add_argument("--show-inactive", action="store_true", help="revoked ones, too")
    add_output_options(parser)


def listing(arguments: Namespace) -> int:
    found: list[Item] = [
        token.data
        for token in client_of(arguments).tokens()
        if arguments.user in (None, token.user) and (arguments.show_inactive or not token.revoked)
    ]
    print_items(COLUMNS, found, arguments)
    return 0


def describe_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "ids", type=identifier, nargs="+", metavar="TOKEN", help="ids, as in the list"
    )
    add_output_options(parser)


def describe(arguments: Namespace) -> int:
    tokens = _by_id(client_of(arguments), arguments.ids)
    print_items(COLUMNS, (token.data for token in tokens), arguments)
    return 0


def revoke_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("id", type=identifier, metavar="TOKEN", help="its id, as in the list")


def revoke(arguments: Namespace) -> int:
    [token] = _by_id(client_of(arguments), [arguments.id])
    token.revoke()
    print(f"token {arguments.id} was revoked")
    return 0


def login_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "token",
        nargs="?",
        metavar="TOKEN",
        help=f"the token, or - to read it from stdin (default: {TOKEN_VARIABLE}, or ask)",
    )
    foreign_option(parser, "-p", "--provider", "--headless", instead="a token is all it takes")


def login(arguments: Namespace) -> int:
    """Stores a token that works, with the address it works for."""
    url = known_url(arguments.url)
    if url is None:
        raise DetcloudError("which cluster? give --url, such as --url https://detcloud.example")
    token = _secret(arguments.token)
    arguments.client = Client(url, token)
    identity = arguments.client.whoami()
    path = remember(url, token)
    user = cell_text(identity["user"])
    print(f"{user} ({identity['role']}) at {url}, kept in {path}")
    return 0


def logout_arguments(parser: ArgumentParser) -> None:
    foreign_option(parser, "-a", "--all", instead="one token is kept at a time")


def logout(arguments: Namespace) -> int:
    print("the token was forgotten" if forget() else "no token was kept")
    return 0


def whoami_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def whoami(arguments: Namespace) -> int:
    client = client_of(arguments)
    print_record(IDENTITY_COLUMNS, {**client.whoami(), "url": client.url}, arguments)
    return 0


def _by_id(client: Client, ids: list[int]) -> list[Token]:
    tokens = {token.id: token for token in client.tokens()}
    missing = ", ".join(str(number) for number in ids if number not in tokens)
    if missing:
        raise DetcloudError(f"there is no token {missing}, or it is not yours")
    return [tokens[number] for number in ids]


def _secret(given: str | None) -> str:
    """The token given, read or asked for; asked for, it does not show."""
    if given == "-":
        given = sys.stdin.readline()
    elif given is None:
        given = os.environ.get(TOKEN_VARIABLE)
    if given is None and sys.stdin.isatty():
        given = getpass("token: ")
    token = (given or "").strip()
    if not token or not token.isprintable() or " " in token:
        raise DetcloudError("there is no token; give it, or - to read it from stdin")
    return token
