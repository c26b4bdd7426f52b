"""`detcloud experiment view`: lists, saves and deletes views of the list of experiments."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from detcloud.cli.commands.experiment_list_arguments import parse_sort
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record
from detcloud.cli.rendering.table import Column, Item, field_column, time_column
from detcloud.client.experiment_list import SORT_FIELDS


def _audience_text(view: Item) -> str:
    """Return the audience of a view: the owner alone, a workspace, or all users."""
    if view.get("workspace"):
        return f"workspace {view['workspace']}"
    return "all users" if view["shared"] else "its owner"


COLUMNS = (
    field_column("Name", "name"),
    field_column("User", "user"),
    Column("For", _audience_text),
    field_column("Filter", "filter"),
    Column("Order", lambda view: f"{view['sort']} {view['order']}", drop_rank=2),
    Column("Columns", lambda view: ", ".join(view["columns"]) or None, drop_rank=4),
    Column("Group", lambda view: view["group"] or None, drop_rank=3),
    time_column("Updated", "updated_ms", drop_rank=1),
)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_views`: `--workspace` and the output form (`--json`, `--yaml` or
    `--csv`).
    """
    parser.add_argument(
        "--workspace", "-w", metavar="NAME", help="list only the views of this workspace"
    )
    add_output_options(parser)


def list_views(arguments: Namespace) -> int:
    """Print the caller's views and the views for other users as text, CSV, JSON or YAML. Return 0.
    Without views, print only the titles, or `[]`.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    views = connect(arguments).experiment_views(arguments.workspace)
    print_items(COLUMNS, (view.data for view in views), arguments)
    return 0


def add_save_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `save_view`: NAME, the content of the view, `--shared` or `--workspace`,
    and the output form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument("name", metavar="NAME", help="the name, unique among your views")
    parser.add_argument("--filter", default="", metavar="TEXT", help="the filter of the list")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        dest="columns",
        metavar="COLUMN",
        help="a shown column: name, progress or another column of the page, metric:loss or "
        "hparam:optimizer.lr; repeatable",
    )
    parser.add_argument(
        "--sort-by",
        type=parse_sort,
        default="id",
        metavar="FIELD",
        help=f"the field to sort by: {', '.join(SORT_FIELDS)}, metric:NAME or hparam:PATH "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--order-by", choices=("asc", "desc"), default="desc", help="default: %(default)s"
    )
    parser.add_argument("--group-by", choices=("project",), default="", help="group the list")
    audience = parser.add_mutually_exclusive_group()
    audience.add_argument(
        "--shared", action="store_true", help="show the view to all users of the cluster"
    )
    audience.add_argument(
        "--workspace",
        "-w",
        default="",
        metavar="NAME",
        help="show the view to all users, for the experiments of this workspace only",
    )
    add_output_options(parser)


def save_view(arguments: Namespace) -> int:
    """Save a view of the caller, print a confirmation, and return 0. With `--json`, `--yaml` or
    `--csv`, print the view. The caller's view with the same name is replaced.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example a wrong filter.
    """
    view = connect(arguments).save_experiment_view(
        arguments.name,
        filter=arguments.filter,
        columns=arguments.columns,
        sort_by=arguments.sort_by,
        order_by=arguments.order_by,
        group_by=arguments.group_by,
        shared=arguments.shared,
        workspace=arguments.workspace,
    )
    if arguments.form != "text":
        print_record(COLUMNS, view.data, arguments)
        return 0
    print(f"view {view.name} was saved for {_audience_text(view.data)}")
    return 0


def add_delete_arguments(parser: ArgumentParser) -> None:
    """Add the required argument NAME of a view, stored unchecked as the text `name`."""
    parser.add_argument("name", metavar="NAME", help="the name, or USER/NAME for a user's view")


def delete_view(arguments: Namespace) -> int:
    """Delete a view, print a confirmation, and return 0. The user is not asked.

    Raises:
        DetcloudError: no cluster is available, no view has the name, or several have, or the view
            is another user's.
    """
    view = connect(arguments).experiment_view(arguments.name)
    view.delete()
    print(f"view {view.name} of {view.user} was deleted")
    return 0


HANDLERS: Handlers = {
    "experiment view list": Handler(add_list_arguments, list_views),
    "experiment view save": Handler(add_save_arguments, save_view),
    "experiment view delete": Handler(add_delete_arguments, delete_view),
}
