"""The verb `describe` of commands, notebooks and shells.

A run is a command, a notebook or a shell. Its kind is `command`, `notebook` or `shell`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from detcloud.cli.commands.run_verbs import COLUMNS, SAVED, add_ids_argument
from detcloud.cli.framework.command_parser import Handler
from detcloud.cli.framework.exit_codes import OK
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_items, print_record, print_value
from detcloud.cli.rendering.proxy_ports import PROXY_PORTS, has_proxy_ports
from detcloud.cli.rendering.quantities import dollars_text
from detcloud.cli.rendering.table import Column, Item, field_column, time_text
from detcloud.client.command import COMMAND, Command, read_command

DETAILS = (
    *COLUMNS,
    field_column("Project", "project"),
    field_column("Description", "description"),
    Column("Program", lambda item: item["config"]["entrypoint"]),
    Column("Slots", lambda item: item["config"]["resources"]["slots"]),
    field_column("Exit code", "exit_code"),
    field_column("Trial", "trial_id"),
    field_column("Priority", "priority"),
    field_column("Weight", "weight"),
    Column("Cost", lambda item: dollars_text(item["cost"])),
    field_column("Job", "job_id"),
    field_column("Message", "message"),
)


def _end_ms(item: Item) -> int | None:
    """Return the time at which a run reaches `max_duration`; None without the limit."""
    end_ms: int | None = (item.get("run") or {}).get("ends_ms")
    return end_ms


ENDS = Column("Ends", lambda item: time_text(_end_ms(item)))
"""The column of a run with a `max_duration`, for descriptions as text."""


def describe_handler(kind: str) -> Handler:
    """Return the handler of the verb `describe` for runs of a kind."""
    return Handler(add_describe_arguments, partial(describe_runs, kind))


def add_describe_arguments(parser: ArgumentParser) -> None:
    """Add the ids of `add_ids_argument` and the output form (`--json`, `--yaml` or `--csv`)."""
    add_ids_argument(parser)
    add_output_options(parser)


def describe_runs(kind: str, arguments: Namespace) -> int:
    """Print the runs of a kind with the given ids in this order, and return OK.

    As text, empty lines separate runs. As JSON or YAML, a single run is an object, and several runs
    are a list. Secrets in configurations are masked.

    Args:
        kind: `command`, `notebook` or `shell`.

    Raises:
        DetcloudError: an id is unknown or belongs to an object of another kind, no cluster is
            available, or a request failed.
    """
    client = connect(arguments)
    numbers = [number for part in arguments.command_ids for number in part]
    items = [_details_of(read_command(client, number, kind)) for number in numbers]
    # Only notebooks and shells have snapshots of their folders.
    details = DETAILS if kind == COMMAND else (*DETAILS, SAVED)
    if arguments.form in ("json", "yaml"):
        print_value(items[0] if len(items) == 1 else items, arguments.form)
    elif arguments.form == "csv":
        print_items(details, items, arguments)
    else:
        for place, item in enumerate(items):
            if place:
                print()
            columns = list(details)
            if _end_ms(item) is not None:
                columns.append(ENDS)
            if has_proxy_ports(item):
                columns.append(PROXY_PORTS)
            print_record(columns, item, arguments)
    return OK


def _details_of(command: Command) -> Item:
    """Return a copy of a run's fields, extended by `trial_id` and `exit_code` of the run's trial.
    Both fields are None without a trial.

    The trial is fetched from the cluster. `exit_code` is also None until the program has ended by
    itself.

    Raises:
        DetcloudError: a request failed.
    """
    trial = command.trial()
    return {
        **command.data,
        "trial_id": None if trial is None else trial.id,
        "exit_code": None if trial is None else trial.exit_code,
    }
