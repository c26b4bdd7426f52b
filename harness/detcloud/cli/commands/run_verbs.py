"""The verbs that commands, notebooks and shells share: list, logs, kill, config and set priority.

A run is a command, a notebook or a shell. Its kind is `command`, `notebook` or `shell`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from functools import partial

from detcloud.cli.commands.logs import add_log_options, print_log
from detcloud.cli.framework.argument_types import parse_id, parse_ids, parse_priority
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import OK
from detcloud.cli.framework.failures import exit_code
from detcloud.cli.framework.options import (
    add_paging_options,
    fetch_limit,
    skip_offset,
    split_states,
)
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.conditions import CONDITION
from detcloud.cli.rendering.output import add_output_options, print_items, print_note, print_value
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import Column, Item, field_column, time_column, time_text
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.command import COMMAND, Command, read_command
from detcloud.client.experiment_list import SORT_FIELDS
from detcloud.shared.errors import DetcloudError

LIST_LIMIT = 100

COLUMNS = (
    field_column("ID", "id"),
    field_column("User", "user", drop_rank=3),
    field_column("Name", "name"),
    CONDITION,
    time_column("Start time", "created_ms", drop_rank=2),
    time_column("End time", "ended_ms", drop_rank=4),
    field_column("Resource pool", "resource_pool", drop_rank=5),
    field_column("Workspace", "workspace", drop_rank=6),
)


def _saved_text(item: Item) -> str | None:
    """Return the size and the time of the last snapshot of a run's folder. None without one."""
    snapshot = (item.get("run") or {}).get("snapshot")
    if snapshot is None:
        return None
    return f"{bytes_text(snapshot['size_bytes'])}, {time_text(snapshot['saved_ms'])}"


SAVED = Column("Last saved", _saved_text, drop_rank=1)
"""The column of notebooks and shells with the last snapshot of the folder."""


def run_handlers(kind: str) -> Handlers:
    """Return the handlers of the verbs that commands, notebooks and shells share, by
    `Command.name`: list, logs, kill, config and set priority.

    Args:
        kind: `command`, `notebook` or `shell`.
    """
    return {
        f"{kind} list": Handler(add_list_arguments, partial(list_runs, kind)),
        f"{kind} logs": Handler(add_logs_arguments, partial(print_run_log, kind)),
        f"{kind} kill": Handler(add_kill_arguments, partial(kill_runs, kind)),
        f"{kind} config": Handler(add_config_arguments, partial(print_config, kind)),
        f"{kind} set priority": Handler(add_priority_arguments, partial(set_priority, kind)),
    }


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_runs`: the filters `--all`, `--workspace` and `--state`, `--quiet`,
    the order, and the output form (`--json`, `--yaml` or `--csv`).

    Also add the paging options `--limit`, `--offset` and `--pages`. By default, the newest
    LIST_LIMIT runs of this user are listed, by descending id. The parser does not check the names
    of states.
    """
    parser.add_argument("-a", "--all", action="store_true", help="also list runs of other users")
    parser.add_argument("-q", "--quiet", action="store_true", help="print ids only")
    parser.add_argument(
        "-w",
        "--workspace",
        "--workspace-name",
        metavar="NAME",
        help="list only runs of this workspace",
    )
    parser.add_argument(
        "--state", metavar="STATES", help="list only these states, such as running,finished"
    )
    parser.add_argument("--sort-by", choices=SORT_FIELDS, default="id", help="default: %(default)s")
    parser.add_argument(
        "--order-by", choices=("asc", "desc"), default="desc", help="default: %(default)s"
    )
    add_paging_options(parser, LIST_LIMIT, "newest")
    add_output_options(parser)


def list_runs(kind: str, arguments: Namespace) -> int:
    """Print the runs of a kind as text, CSV, JSON or YAML, by default only the newest runs of this
    user. Return OK.

    `--limit` is LIST_LIMIT by default. With `--quiet`, print only ids, a line for each, whatever
    the form. Without runs, print only the titles, `[]`, or nothing with `--quiet`. Notes on
    left-out runs are printed to stderr.

    Args:
        kind: `command`, `notebook` or `shell`.

    Raises:
        DetcloudError: no cluster is available, or the cluster refuses, for example an unknown
            state.
    """
    client = connect(arguments)
    runs = client.experiments(
        kind=kind,
        user=None if arguments.all else client.whoami()["user"],
        states=split_states(arguments.state),
        workspace=arguments.workspace,
        sort_by=arguments.sort_by,
        order_by=arguments.order_by,
        on_left_out=print_note,
        limit=fetch_limit(arguments),
    )
    shown = skip_offset(runs, arguments)
    if arguments.quiet:
        for run in shown:
            print(run.id)
        return OK
    columns = COLUMNS if kind == COMMAND else (*COLUMNS, SAVED)
    print_items(columns, (run.data for run in shown), arguments)
    return OK


def add_logs_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_run_log`: ID and the options of `add_log_options`."""
    add_id_argument(parser)
    add_log_options(parser)


def print_run_log(kind: str, arguments: Namespace) -> int:
    """Print the log of a run according to the options of `add_log_options`, and return OK.

    With `--follow`, wait without a time limit until the log is complete. Print nothing if the run
    has no trial yet, also with `--follow`.

    Args:
        kind: `command`, `notebook` or `shell`.

    Raises:
        DetcloudError: no cluster is available, or the id is unknown or belongs to another kind. Or
            no line matches and `--rank` is not a rank of the run, or a request failed.
    """
    trial = load_run(kind, arguments).trial()
    return OK if trial is None else print_log(trial, arguments)


def add_kill_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `kill_runs`: the ids of `add_ids_argument` and `--force`."""
    add_ids_argument(parser)
    parser.add_argument(
        "-f", "--force", action="store_true", help="continue with the next id after an error"
    )


def kill_runs(kind: str, arguments: Namespace) -> int:
    """Kill the commands, notebooks or shells with the given ids in order, and print the state of
    each. The user is not asked.

    With `--force`, an error is printed to stderr and the next id follows. Return OK, or the exit
    code of the first error.

    Args:
        kind: `command`, `notebook` or `shell`.

    Raises:
        DetcloudError: no cluster is available, or without `--force` an id is unknown or belongs to
            another kind, or a request failed. Earlier runs stay killed.
    """
    client = connect(arguments)
    code = OK
    for number in (number for part in arguments.command_ids for number in part):
        try:
            command = read_command(client, number, kind)
            command.kill()
        except DetcloudError as error:
            if not arguments.force:
                raise
            print(f"{kind} {number}: {sanitize(str(error))}", file=sys.stderr)
            code = code or exit_code(error)
            continue
        print(state_sentence(f"{kind} {number}", command.state))
    return code


def add_config_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `print_config`: ID and the output form (`--json` or `--yaml`)."""
    add_id_argument(parser)
    add_output_options(parser, csv=False)


def print_config(kind: str, arguments: Namespace) -> int:
    """Print the configuration of a run as YAML, or as JSON with `--json`, and return OK. The
    configuration has every default, and secrets are masked.

    Raises:
        DetcloudError: no cluster is available, the id is unknown or belongs to another kind, or a
            request failed.
    """
    form = "json" if arguments.form == "json" else "yaml"
    print_value(load_run(kind, arguments).config, form)
    return OK


def add_priority_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `set_priority`: ID and PRIORITY, parsed by `parse_priority`."""
    add_id_argument(parser)
    parser.add_argument(
        "priority", type=parse_priority, metavar="PRIORITY", help="1 to 99, 1 being the first"
    )


def set_priority(kind: str, arguments: Namespace) -> int:
    """Change the priority of a run in a pool with the priority scheduler, print the new priority,
    and return OK.

    Raises:
        DetcloudError: no cluster is available, the id is unknown or belongs to another kind, or the
            cluster refuses, for example a priority outside 1 to 99.
    """
    command = load_run(kind, arguments)
    command.set_priority(arguments.priority)
    print(f"{kind} {command.id} has priority {command.priority}")
    return OK


def add_id_argument(parser: ArgumentParser) -> None:
    """Add the required argument ID of a run, parsed by `parse_id` and stored as the integer
    `command_id`.
    """
    parser.add_argument("command_id", type=parse_id, metavar="ID", help="the id, as listed")


def add_ids_argument(parser: ArgumentParser) -> None:
    """Add the argument ID of runs, required and repeatable, stored as `command_ids`: a list of
    lists of integers.

    A word may have several ids, separated by commas. Each word gives one inner list.
    """
    parser.add_argument(
        "command_ids",
        type=parse_ids,
        nargs="+",
        metavar="ID",
        help="ids, separated by spaces or commas",
    )


def load_run(kind: str, arguments: Namespace) -> Command:
    """Fetch the run of `add_id_argument` from the configured cluster. The client is stored in
    `arguments.client`, and `main` closes the client.

    Args:
        kind: `command`, `notebook` or `shell`.

    Raises:
        DetcloudError: no cluster is available, the id is unknown or belongs to an object of another
            kind, or the request failed.
    """
    return read_command(connect(arguments), arguments.command_id, kind)
