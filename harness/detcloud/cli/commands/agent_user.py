"""`detcloud user` and `workspace`: link users and workspaces with users of the machines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items
from detcloud.cli.rendering.table import field_column, time_column

PATH = "/agent-users"
COLUMNS = (
    field_column("Kind", "kind"),
    field_column("Name", "name"),
    field_column("UID", "uid"),
    field_column("User", "user"),
    field_column("GID", "gid"),
    field_column("Group", "group"),
    field_column("Changed by", "changed_by", drop_rank=2),
    time_column("Changed", "changed_ms", drop_rank=1),
)


def list_agent_users(arguments: Namespace) -> int:
    """Print the agent users of users and workspaces as text, CSV, JSON or YAML. Return 0.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    print_items(COLUMNS, connect(arguments).items(PATH), arguments)
    return 0


def add_name_argument(kind: str, parser: ArgumentParser) -> None:
    """Add the required argument `name`, which the help shows as USER or WORKSPACE."""
    parser.add_argument("name", metavar=kind.upper(), help=f"the name of the {kind}")


def add_link_arguments(kind: str, parser: ArgumentParser) -> None:
    """Add the name, and the options with the user and the group of the machines.

    Both numbers are required for a user. A workspace needs one of them.
    """
    add_name_argument(kind, parser)
    is_required = kind == "user"
    parser.add_argument(
        "--agent-uid",
        type=int,
        metavar="UID",
        required=is_required,
        help="the number of the user on the machines",
    )
    parser.add_argument(
        "--agent-user",
        default="",
        metavar="NAME",
        help="the name of the user on the machines; a machine with another name for the number "
        "refuses the trials",
    )
    parser.add_argument(
        "--agent-gid",
        type=int,
        metavar="GID",
        required=is_required,
        help="the number of the group on the machines",
    )
    parser.add_argument(
        "--agent-group", default="", metavar="NAME", help="the name of the group on the machines"
    )


def link(kind: str, arguments: Namespace) -> int:
    """Set the agent user of a user or a workspace, print a confirmation, and return 0.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    connect(arguments).put(
        PATH,
        {
            "kind": kind,
            "name": arguments.name,
            "uid": arguments.agent_uid,
            "gid": arguments.agent_gid,
            "user": arguments.agent_user,
            "group": arguments.agent_group,
        },
    )
    print(
        f"trials of {kind} {arguments.name} run as {_ids_text(arguments)} from their next start on"
    )
    return 0


def unlink(kind: str, arguments: Namespace) -> int:
    """Remove the agent user of a user or a workspace, print a confirmation, and return 0.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    connect(arguments).delete(PATH, kind=kind, name=arguments.name)
    print(f"{kind} {arguments.name} has no agent user any more")
    return 0


def _ids_text(arguments: Namespace) -> str:
    """Return the numbers of the arguments, for example `uid 1001 and gid 1001`."""
    ids = {"uid": arguments.agent_uid, "gid": arguments.agent_gid}
    return " and ".join(f"{name} {number}" for name, number in ids.items() if number is not None)


HANDLERS: Handlers = {
    "user list-agent-users": Handler(add_output_options, list_agent_users),
    **{
        f"{kind} link-with-agent-user": Handler(
            partial(add_link_arguments, kind), partial(link, kind)
        )
        for kind in ("user", "workspace")
    },
    **{
        f"{kind} unlink-agent-user": Handler(
            partial(add_name_argument, kind), partial(unlink, kind)
        )
        for kind in ("user", "workspace")
    },
}
