"""`detcloud command`: runs programs on the cluster, and lists, describes and kills runs.

A run is a command, a notebook or a shell. Its kind is `command`, `notebook` or `shell`.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from detcloud.cli.commands.logs import add_log_options, follow_log, print_log
from detcloud.cli.framework.argument_types import parse_id, parse_ids, parse_priority
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED, OK
from detcloud.cli.framework.failures import RefusedConfigError, exit_code
from detcloud.cli.framework.options import (
    add_include_option,
    add_overrides_option,
    add_paging_options,
    fetch_limit,
    skip_offset,
)
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.hints import print_warnings
from detcloud.cli.rendering.output import (
    add_output_options,
    print_items,
    print_note,
    print_record,
    print_value,
    render_json,
)
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text, dollars_text
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import Column, Item, field_column, shorten_message, time_column
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.command import COMMAND, Command, create_command, read_command
from detcloud.client.experiment_list import SORT_FIELDS
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

LIST_LIMIT = 100
COLUMNS = (
    field_column("ID", "id"),
    field_column("User", "user", drop_rank=3),
    field_column("Name", "name"),
    field_column("State", "state"),
    time_column("Start time", "created_ms", drop_rank=2),
    time_column("End time", "ended_ms", drop_rank=4),
    field_column("Resource pool", "resource_pool", drop_rank=5),
    field_column("Workspace", "workspace", drop_rank=6),
)
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


def add_run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs=REMAINDER,
        metavar="PROGRAM",
        help="the program and its arguments, after `--` if they look like options; a single word "
        "is run by `sh`, several words are run without a shell",
    )
    add_creation_options(parser)


def add_creation_options(parser: ArgumentParser) -> None:
    """Add the options for files and settings of a new run, and `--detach`. `create_run`,
    `overrides_of` and `show_new_run` read the options.
    """
    parser.add_argument(
        "--config-file", type=Path, metavar="FILE", help="a YAML file with further settings"
    )
    add_overrides_option(parser, example="resources.slots=0")
    parser.add_argument(
        "-c",
        "--context",
        type=Path,
        metavar="DIR",
        help="copy the files of this folder to the working directory of the program",
    )
    add_include_option(parser)
    parser.add_argument(
        "-v",
        "--volume",
        dest="mounts",
        action="append",
        type=parse_mount,
        default=[],
        metavar="HOST_PATH:CONTAINER_PATH",
        help="mount a directory of the machine; may be repeated",
    )
    parser.add_argument(
        "-w",
        "--workspace",
        "--workspace-name",
        metavar="NAME",
        help="the workspace of the run",
    )
    parser.add_argument(
        "--template", metavar="NAME", help="a template that provides missing settings"
    )
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="print the id without following or opening the run",
    )


def run_command(arguments: Namespace) -> int:
    """Run a program, print the log, and return the program's exit code. Ctrl-C leaves the program
    running.

    A local cluster is started if no cluster is configured or running. The wait has no limit. With
    `--detach`, print the id and return 0 at once.

    Raises:
        DetcloudError: the settings were refused, no program was given, or no cluster is available.
    """
    command = _create(arguments)
    return show_new_run(
        command,
        COMMAND,
        lambda: _follow(command),
        arguments,
        state="was created",
        reopen=f"watch it with `detcloud command logs -f {command.id}`",
    )


def show_new_run(
    run: Command,
    kind: str,
    show: Callable[[], int],
    arguments: Namespace,
    *,
    state: str,
    reopen: str,
    check_start: Callable[[], int] = lambda: OK,
) -> int:
    """Print the warnings of a new run to stderr, call `show`, and return the exit code of `show`.

    With `--detach`, print the id instead, and return the exit code of `check_start`. Ctrl-C leaves
    the run alive and returns INTERRUPTED.

    Args:
        kind: `command`, `notebook` or `shell`.
        show: follows or opens the run, and returns the exit code.
        arguments: the options of `add_creation_options`.
        state: the state of the run for the first message, such as `is starting`.
        reopen: the text for the message after Ctrl-C that says how to show the run again.
        check_start: called with `--detach`, after the id was printed.
    """
    print_warnings(run.warnings)
    if arguments.detach:
        print(run.id, flush=True)
        return check_start()
    print(f"{kind} {run.id} {state}; Ctrl-C leaves it running", file=sys.stderr)
    try:
        return show()
    except KeyboardInterrupt:
        print(
            f"\n{kind} {run.id} continues; {reopen}, end it with `detcloud {kind} kill {run.id}`",
            file=sys.stderr,
        )
        return INTERRUPTED


def add_list_arguments(parser: ArgumentParser) -> None:
    """Add the options of `list_runs`."""
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
        "--state", metavar="STATES", help="list only these states, such as ACTIVE,COMPLETED"
    )
    parser.add_argument("--sort-by", choices=SORT_FIELDS, default="id", help="default: %(default)s")
    parser.add_argument(
        "--order-by", choices=("asc", "desc"), default="desc", help="default: %(default)s"
    )
    add_paging_options(parser, LIST_LIMIT, "newest")
    add_output_options(parser)


def list_runs(kind: str, arguments: Namespace) -> int:
    """Print the runs of a kind, by default only the newest runs of this user, and return OK.

    `--limit` is LIST_LIMIT by default. With `--quiet`, print only ids. Notes on left-out runs are
    printed to stderr. Raise DetcloudError without a cluster.
    """
    client = connect(arguments)
    commands = client.experiments(
        kind=kind,
        user=None if arguments.all else client.whoami()["user"],
        states=arguments.state.upper().split(",") if arguments.state else (),
        workspace=arguments.workspace,
        sort_by=arguments.sort_by,
        order_by=arguments.order_by,
        on_left_out=print_note,
        limit=fetch_limit(arguments),
    )
    found = skip_offset(commands, arguments)
    if arguments.quiet:
        for command in found:
            print(command.id)
        return OK
    print_items(COLUMNS, (command.data for command in found), arguments)
    return OK


def add_describe_arguments(parser: ArgumentParser) -> None:
    _add_ids_argument(parser)
    add_output_options(parser)


def describe_commands(arguments: Namespace) -> int:
    """Print the commands with the given ids, and return OK. As JSON or YAML, several commands are a
    list.

    An id of another kind or an unknown id raises DetcloudError.
    """
    found = [_details_of(command) for command in _load_commands(arguments)]
    if arguments.form in ("json", "yaml"):
        print_value(found[0] if len(found) == 1 else found, arguments.form)
    elif arguments.form == "csv":
        print_items(DETAILS, found, arguments)
    else:
        for place, item in enumerate(found):
            if place:
                print()
            print_record(DETAILS, item, arguments)
    return OK


def add_logs_arguments(parser: ArgumentParser) -> None:
    add_id_argument(parser)
    add_log_options(parser)


def print_run_log(kind: str, arguments: Namespace) -> int:
    """Print the log of a run, and return OK. Print nothing if no trial exists yet, also with
    `--follow`.
    """
    trial = load_run(kind, arguments).trial()
    return OK if trial is None else print_log(trial, arguments)


def add_kill_arguments(parser: ArgumentParser) -> None:
    _add_ids_argument(parser)
    parser.add_argument(
        "-f", "--force", action="store_true", help="continue with the next id after an error"
    )


def kill_runs(kind: str, arguments: Namespace) -> int:
    """Kill the commands, notebooks or shells with the given ids, and print the state of each.

    The user is not asked. With `--force`, an error is printed to stderr and the next id follows.
    Return 0, or the exit code of the first error.

    Raises:
        DetcloudError: the first error without `--force`. Earlier runs stay killed.
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
    add_id_argument(parser)
    add_output_options(parser, csv=False)


def print_config(kind: str, arguments: Namespace) -> int:
    """Print the configuration of a run as YAML, or as JSON with `--json`. Return OK."""
    form = "json" if arguments.form == "json" else "yaml"
    print_value(load_run(kind, arguments).config, form)
    return OK


def add_priority_arguments(parser: ArgumentParser) -> None:
    add_id_argument(parser)
    parser.add_argument(
        "priority", type=parse_priority, metavar="PRIORITY", help="1 to 99, 1 being the first"
    )


def set_priority(kind: str, arguments: Namespace) -> int:
    """Change the priority of a run under the priority scheduler, print the new priority, and return
    OK.
    """
    command = load_run(kind, arguments)
    command.set_priority(arguments.priority)
    print(f"{kind} {command.id} has priority {command.priority}")
    return OK


def parse_mount(text: str) -> dict[str, Any]:
    """Parse HOST_PATH:CONTAINER_PATH into an entry of `bind_mounts`. The paths are not checked.

    Raises:
        ArgumentTypeError: the text does not have exactly two paths.
    """
    host, colon, container = text.partition(":")
    if not (host and colon and container) or ":" in container:
        raise ArgumentTypeError(f"{text!r} is not a mount; expected HOST_PATH:CONTAINER_PATH")
    return {"host_path": host, "container_path": container}


def program_words(words: list[str]) -> list[str]:
    """Return the words of a program without a leading `--`. Without words, return an empty list."""
    return words[1:] if words[:1] == ["--"] else words


def _create(arguments: Namespace) -> Command:
    """Create a command with the program and the settings of the arguments.

    A local cluster is started if no cluster is configured or running.

    Raises:
        RefusedConfigError: the cluster refused the settings. The message has a line for each
            problem.
        DetcloudError: neither a program nor `--config-file` was given, or no cluster is available.
    """
    words = program_words(arguments.words)
    if not words and arguments.config_file is None:
        raise DetcloudError("no program was given; name a program, such as `nvidia-smi`")
    overrides = overrides_of(arguments)
    client = connect(arguments, start=True)
    return create_run(partial(create_command, client, words), COMMAND, overrides, arguments)


def create_run(
    create: Callable[..., Command], kind: str, overrides: list[str], arguments: Namespace
) -> Command:
    """Call `create` with the options of `add_creation_options`, and return the new run. A progress
    line shows the upload.

    Raises:
        RefusedConfigError: the cluster refused the settings. The message has a line for each
            problem.
        KeyboardInterrupt: after a hint was printed, because the run may have been created.
    """
    with show_progress("files", bytes_text) as progress:
        try:
            return create(
                config=arguments.config_file,
                context=arguments.context,
                includes=arguments.includes,
                overrides=overrides,
                template=arguments.template,
                on_progress=progress.update,
            )
        except ApiError as error:
            if error.code in ("invalid", "too_large"):
                shown = arguments.config_file or f"the {kind}"
                raise RefusedConfigError(str(shown), error) from None
            raise
        except KeyboardInterrupt:
            text = f"`detcloud {kind} list` shows whether the {kind} was created"
            print(text, file=sys.stderr)
            raise


def overrides_of(arguments: Namespace) -> list[str]:
    """Return the settings of `--workspace` and `--volume` as KEY=VALUE texts, followed by the
    overrides of `--config`. The list may be empty.

    Raises:
        DetcloudError: `--volume` and `--config-file` were combined, because the file may have
            mounts too.
    """
    if arguments.mounts and arguments.config_file is not None:
        raise DetcloudError(f"write the mounts into {arguments.config_file}, as `bind_mounts`")
    fields = {"workspace": arguments.workspace, "bind_mounts": arguments.mounts}
    own = [f"{name}={render_json(value, indent=None)}" for name, value in fields.items() if value]
    return [*own, *arguments.overrides]


def _follow(command: Command) -> int:
    """Print the log of a command until the command ends, without a time limit. Return the program's
    exit code.

    An exit code other than 0 is also printed to stderr. Return FAILED if the command ended without
    an exit code, after printing the reason to stderr.
    """
    trial = follow_log(command)
    if trial is not None and trial.state == "COMPLETED":
        return OK
    command.refresh()
    code = None if trial is None else trial.exit_code
    if code is not None:
        print(f"command {command.id} ended with exit code {code}", file=sys.stderr)
        return code or FAILED
    message = shorten_message(command.message) if command.message else ""
    reason = f": {sanitize(message)}" if message else ""
    print(f"command {command.id} ended: {command.state}{reason}", file=sys.stderr)
    return FAILED


def _details_of(command: Command) -> Item:
    """Return the fields of a run, with `trial_id` and `exit_code` of its trial.

    The trial is fetched from the cluster. Both fields are None without a trial.
    """
    trial = command.trial()
    return {
        **command.data,
        "trial_id": None if trial is None else trial.id,
        "exit_code": None if trial is None else trial.exit_code,
    }


def add_id_argument(parser: ArgumentParser) -> None:
    """Add the argument ID of a run, stored as `command_id`."""
    parser.add_argument("command_id", type=parse_id, metavar="ID", help="the id, as listed")


def _add_ids_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "command_ids",
        type=parse_ids,
        nargs="+",
        metavar="ID",
        help="ids, separated by spaces or commas",
    )


def load_run(kind: str, arguments: Namespace) -> Command:
    """Fetch the run of `add_id_argument` from the configured cluster.

    Raises:
        DetcloudError: no cluster is available, the id is unknown, or the id belongs to an object of
            another kind.
    """
    return read_command(connect(arguments), arguments.command_id, kind)


def _load_commands(arguments: Namespace) -> list[Command]:
    client = connect(arguments)
    return [read_command(client, number) for part in arguments.command_ids for number in part]


def run_handlers(kind: str) -> Handlers:
    """Return the handlers of the verbs of `kind` that commands, notebooks and shells share: list,
    logs, kill, config and set priority.
    """
    return {
        f"{kind} list": Handler(add_list_arguments, partial(list_runs, kind)),
        f"{kind} logs": Handler(add_logs_arguments, partial(print_run_log, kind)),
        f"{kind} kill": Handler(add_kill_arguments, partial(kill_runs, kind)),
        f"{kind} config": Handler(add_config_arguments, partial(print_config, kind)),
        f"{kind} set priority": Handler(add_priority_arguments, partial(set_priority, kind)),
    }


HANDLERS: Handlers = {
    "command run": Handler(add_run_arguments, run_command),
    "command describe": Handler(add_describe_arguments, describe_commands),
    **run_handlers(COMMAND),
}
