"""`detcloud workspace` and `project`: list the groups of experiments, and move experiments."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence

from detcloud.cli.framework.argument_types import parse_ids
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.failures import NotFoundError
from detcloud.cli.framework.options import add_paging_options, fetch_limit, skip_offset
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_note
from detcloud.cli.rendering.table import Column, Item, cell_text, field_column
from detcloud.shared.errors import DetcloudError

_COUNTS = (
    field_column("Experiments", "experiments"),
    field_column("Open", "open"),
    field_column("Archived", "archived", drop_rank=1),
)
WORKSPACE_COLUMNS = (
    field_column("Workspace", "workspace"),
    field_column("Projects", "projects"),
    *_COUNTS,
)
PROJECT_COLUMNS = (
    field_column("Workspace", "workspace"),
    field_column("Project", "project"),
    *_COUNTS,
)


def add_list_projects_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `list_projects`: WORKSPACE, None by default, and the options of
    `add_list_arguments`.
    """
    parser.add_argument(
        "workspace", nargs="?", metavar="WORKSPACE", help="list only projects of this workspace"
    )
    add_list_arguments(parser)


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_workspaces` and `list_projects`: `--sort-by` with the single choice
    `name`, and `--order-by`, by default `asc`.

    Also add the paging options `--limit`, by default without a limit, `--offset` and `--pages`, and
    the output form (`--json`, `--yaml` or `--csv`).
    """
    parser.add_argument(
        "--sort-by", choices=("name",), default="name", help="the only order supported"
    )
    parser.add_argument(
        "--order-by", choices=("asc", "desc"), default="asc", help="default: %(default)s"
    )
    add_paging_options(parser, None)
    add_output_options(parser)


def list_projects(arguments: Namespace) -> int:
    """Print the projects of all workspaces, or of the named workspace, and return 0. Without
    projects, print only the titles, or `[]`.

    The order is by name; `--order-by desc` reverses the list. `--limit` and `--offset` cut the
    list. Notes on left-out projects are printed to stderr.

    Raises:
        NotFoundError: the named workspace has no experiments.
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    projects = connect(arguments).projects(arguments.workspace, on_left_out=print_note)
    if arguments.workspace is not None and not projects:
        raise NotFoundError(
            f"no experiment is in a workspace {arguments.workspace!r}; `detcloud workspace list` "
            "shows the workspaces"
        )
    _print_list(PROJECT_COLUMNS, [{**project} for project in projects], arguments)
    return 0


def list_workspaces(arguments: Namespace) -> int:
    """Print the workspaces that have experiments, in the order of the names, and return 0. Without
    workspaces, print only the titles, or `[]`.

    `--order-by desc` reverses the list. `--limit` and `--offset` cut the list. Notes on left-out
    workspaces are printed to stderr.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses the request.
    """
    workspaces = connect(arguments).workspaces(on_left_out=print_note)
    _print_list(WORKSPACE_COLUMNS, [{**workspace} for workspace in workspaces], arguments)
    return 0


def _print_list(columns: Sequence[Column], items: list[Item], arguments: Namespace) -> None:
    """Print the items after `--order-by`, `--limit` and `--offset` as text, CSV, JSON or YAML. With
    `desc`, `items` is reversed in place before the cut.

    Args:
        columns: the columns of the table and of CSV.
        items: the items in ascending order.
    """
    if arguments.order_by == "desc":
        items.reverse()
    shown = skip_offset(items[: fetch_limit(arguments)], arguments)
    print_items(columns, shown, arguments)


def add_move_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `move_experiments`, stored as the list `words`, which `parse_move`
    parses.
    """
    parser.add_argument(
        "words",
        nargs="+",
        metavar="EXPERIMENT... WORKSPACE/PROJECT",
        help="experiment ids, separated by spaces or commas, then the destination; also "
        "`WORKSPACE PROJECT`",
    )


def move_experiments(arguments: Namespace) -> int:
    """Move experiments in the order of the arguments, print the new project of each, and return 0.
    The workspace and the project are created if needed.

    Each experiment is fetched and moved before the next. If a move fails, earlier moves remain.

    Raises:
        DetcloudError: the words have no destination or a wrong id, no cluster is available, an
            experiment does not exist, or the cluster refuses a move.
    """
    ids, workspace, project = parse_move(arguments.words)
    client = connect(arguments)
    for experiment_id in ids:
        experiment = client.experiment(experiment_id)
        experiment.move(workspace, project)
        where = f"{cell_text(experiment.workspace)}/{cell_text(experiment.project)}"
        print(f"experiment {experiment_id} is in {where}")
    return 0


def parse_move(words: Sequence[str]) -> tuple[list[int], str, str]:
    """Parse ids followed by `WORKSPACE/PROJECT` or `WORKSPACE PROJECT`.

    Return the ids without duplicates in their order, the workspace and the project. The project
    begins after the first slash.

    Args:
        words: at least one word. A word may have several ids, separated by commas.

    Raises:
        DetcloudError: the words have no id, no destination, or an id that is not a whole number.
    """
    *numbers, last = words
    workspace, slash, project = last.partition("/")
    if not slash and len(numbers) > 1:
        *numbers, workspace = numbers
        project = last
    if not numbers or not workspace or not project:
        raise DetcloudError(
            f"{' '.join(words)!r} names no destination; expected ids and WORKSPACE/PROJECT, such"
            " as `detcloud experiment move 12 13 Vision/Digits`"
        )
    try:
        ids = [number for part in numbers for number in parse_ids(part)]
    except ArgumentTypeError as error:
        raise DetcloudError(str(error)) from None
    return list(dict.fromkeys(ids)), workspace, project


HANDLERS: Handlers = {
    "workspace list": Handler(add_list_arguments, list_workspaces),
    "project list": Handler(add_list_projects_arguments, list_projects),
    "experiment move": Handler(add_move_arguments, move_experiments),
}
