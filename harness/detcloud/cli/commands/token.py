"""`detcloud token`: creates, lists and revokes access tokens."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from detcloud.cli.framework.argument_types import parse_count, parse_id, parse_minutes
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_value
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column, time_column
from detcloud.client import Client, Token
from detcloud.shared.errors import DetcloudError

COLUMNS = (
    field_column("ID", "id"),
    field_column("User", "user"),
    field_column("Role", "role"),
    field_column("Resource pool", "resource_pool", drop_rank=3),
    field_column("Description", "description", drop_rank=1),
    time_column("Created", "created_ms", drop_rank=2),
    time_column("Expires", "expires_ms"),
    Column("Revoked", lambda token: "yes" if token["revoked"] else "no"),
    field_column("Used by", "used_by", drop_rank=1),
)


def add_create_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `create_token`: USER, `--role` or `--join`, `--description`,
    `--expires-days` or `--expires`, `--once`, and the output form (`--json` or `--yaml`).

    If not given, the output form is `text`, `once` is False, and all other arguments are None.
    """
    parser.add_argument("user", nargs="?", metavar="USER", help="the user (default: yourself)")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--role", choices=("user", "admin", "metrics"), help="the role of the token")
    role.add_argument(
        "--join", metavar="POOL", help="a join token: it only lets agents join this resource pool"
    )
    parser.add_argument("-d", "--description", metavar="TEXT", help="a description")
    parser.add_argument(
        "-e",
        "--expires-days",
        "--expiration-days",
        type=parse_count,
        metavar="DAYS",
        help="days until the token expires, 1 to 365",
    )
    parser.add_argument(
        "--once", action="store_true", help="with --join: good for one agent, within an hour"
    )
    parser.add_argument(
        "--expires",
        type=parse_minutes,
        metavar="TIME",
        help="time until the token expires, such as 30m, 2h or 7d",
    )
    add_output_options(parser, csv=False)


def create_token(arguments: Namespace) -> int:
    """Create a token on the cluster, print only the token to stdout, for scripts, and return 0.

    The user is USER, or the caller. With `--join`, the token only lets agents join a pool, and with
    `--once` only a single agent. A notice
    on safe storage is printed to stderr. The token is not stored on this machine. With `--json` or
    `--yaml`, print all fields, token included, without the notice.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example a token for
            another user.
    """
    token = connect(arguments).create_token(
        arguments.user,
        role="join" if arguments.join else arguments.role,
        resource_pool=arguments.join,
        description=arguments.description,
        expires_days=arguments.expires_days,
        expires_minutes=arguments.expires,
        once=True if arguments.once else None,
    )
    if arguments.form != "text":
        print_value(token.data, arguments.form)
        return 0
    print(token.token, flush=True)
    print(
        f"token {token.id} of {cell_text(token.user)}; store it safely: it is shown only once",
        file=sys.stderr,
    )
    return 0


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_tokens`: USER, None by default, `--show-inactive` and the output
    form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument("user", nargs="?", metavar="USER", help="list only tokens of this user")
    parser.add_argument("--show-inactive", action="store_true", help="also list revoked tokens")
    add_output_options(parser)


def list_tokens(arguments: Namespace) -> int:
    """Print the tokens that match the filters as text, CSV, JSON or YAML, and return 0. Revoked
    tokens are omitted unless `--show-inactive` is given.

    Administrators see all tokens, and other users their own tokens. The list never has the secret
    of a token. Without tokens, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    items: list[Item] = [
        token.data
        for token in connect(arguments).tokens()
        if arguments.user in (None, token.user) and (arguments.show_inactive or not token.revoked)
    ]
    print_items(COLUMNS, items, arguments)
    return 0


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `describe_tokens`: TOKEN, repeatable, stored as the list of integers
    `ids`, and the output form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument(
        "ids", type=parse_id, nargs="+", metavar="TOKEN", help="ids of `detcloud token list`"
    )
    add_output_options(parser)


def describe_tokens(arguments: Namespace) -> int:
    """Print the tokens with the given ids in this order, as text, CSV, JSON or YAML. Return 0.
    Revoked tokens are included, and secrets are not printed.

    Raises:
        DetcloudError: a token does not exist or belongs to another user, no cluster is available,
            or the request failed.
    """
    tokens = _find_tokens(connect(arguments), arguments.ids)
    print_items(COLUMNS, (token.data for token in tokens), arguments)
    return 0


def add_revoke_arguments(parser: ArgumentParser) -> None:
    """Add the required argument TOKEN, parsed by `parse_id` and stored as the integer `id`."""
    parser.add_argument(
        "id", type=parse_id, metavar="TOKEN", help="the id of `detcloud token list`"
    )


def revoke_token(arguments: Namespace) -> int:
    """Revoke the token with the given id, print a confirmation, and return 0. The user is not
    asked.

    Tokens that were created with this token are revoked too.

    Raises:
        DetcloudError: the token does not exist or belongs to another user, no cluster is available,
            or a request failed.
    """
    [token] = _find_tokens(connect(arguments), [arguments.id])
    token.revoke()
    print(f"token {arguments.id} was revoked")
    return 0


def _find_tokens(client: Client, ids: list[int]) -> list[Token]:
    """Return the tokens with the given ids, in the order of the ids. All visible tokens are fetched
    from the cluster.

    Raises:
        DetcloudError: a token does not exist or belongs to another user, or the request failed.
    """
    tokens = {token.id: token for token in client.tokens()}
    missing = ", ".join(str(number) for number in ids if number not in tokens)
    if missing:
        raise DetcloudError(f"there is no token {missing}, or it belongs to another user")
    return [tokens[number] for number in ids]


HANDLERS: Handlers = {
    "token list": Handler(add_list_arguments, list_tokens),
    "token describe": Handler(add_describe_arguments, describe_tokens),
    "token create": Handler(add_create_arguments, create_token),
    "token revoke": Handler(add_revoke_arguments, revoke_token),
}
