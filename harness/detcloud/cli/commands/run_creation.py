"""Creation of commands, notebooks and shells: options, settings and the first messages.

A run is a command, a notebook or a shell. Its kind is `command`, `notebook` or `shell`.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcloud.cli.framework.exit_codes import INTERRUPTED, OK
from detcloud.cli.framework.failures import RefusedConfigError
from detcloud.cli.framework.options import add_include_option, add_overrides_option
from detcloud.cli.rendering.hints import print_warnings
from detcloud.cli.rendering.output import render_json
from detcloud.cli.rendering.progress import show_progress
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.client.command import Command
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError


def add_creation_options(parser: ArgumentParser) -> None:
    """Add the options for files and settings of a new run, and `--detach`. `create_run`,
    `overrides_of` and `show_new_run` read the options.

    The options are `--config-file`, `--config`, `--context`, `--include`, `--volume`,
    `--workspace`, `--template` and `--detach`. The attributes `overrides`, `includes` and `mounts`
    are lists, empty by default; `detach` is False, and the others are None. Paths are not checked.
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


def parse_mount(text: str) -> dict[str, Any]:
    """Parse HOST_PATH:CONTAINER_PATH into an entry of `bind_mounts` with `host_path` and
    `container_path`. The paths are not checked.

    Raises:
        ArgumentTypeError: the text does not have exactly two paths that are separated by a colon.
    """
    host, colon, container = text.partition(":")
    if not (host and colon and container) or ":" in container:
        raise ArgumentTypeError(f"{text!r} is not a mount; expected HOST_PATH:CONTAINER_PATH")
    return {"host_path": host, "container_path": container}


def program_words(words: list[str]) -> list[str]:
    """Return the words of a program without a leading `--`. Without words, return an empty list."""
    return words[1:] if words[:1] == ["--"] else words


def overrides_of(arguments: Namespace) -> list[str]:
    """Return the settings of `--workspace` and `--volume` as KEY=VALUE texts with values in JSON,
    followed by the overrides of `--config`. The list is empty without these options.

    Raises:
        DetcloudError: `--volume` and `--config-file` were combined, because the file may have
            mounts too.
    """
    if arguments.mounts and arguments.config_file is not None:
        raise DetcloudError(f"write the mounts into {arguments.config_file}, as `bind_mounts`")
    fields = {"workspace": arguments.workspace, "bind_mounts": arguments.mounts}
    own = [f"{name}={render_json(value, indent=None)}" for name, value in fields.items() if value]
    return [*own, *arguments.overrides]


def create_run(
    create: Callable[..., Command], kind: str, overrides: list[str], arguments: Namespace
) -> Command:
    """Call `create` with the options of `add_creation_options`, and return the new run. A progress
    line on stderr shows the upload.

    Args:
        create: uploads the files and submits the run, such as `create_command` with bound
            arguments.
        kind: `command`, `notebook` or `shell`, for messages.
        overrides: KEY=VALUE texts that change settings.

    Raises:
        RefusedConfigError: the cluster refused the settings. The message has a line for each
            problem.
        DetcloudError: a file cannot be read, or another request failed.
        KeyboardInterrupt: after a hint on stderr, because the run may have been created.
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
    Before the call, a notice on stderr names the run's id.

    With `--detach`, print the id to stdout and the notice to stderr instead, and return the exit
    code of `check_start`.
    Ctrl-C in `show` leaves the run alive, prints a notice and returns INTERRUPTED. Ctrl-C in
    `check_start` and all errors are raised.

    Args:
        kind: `command`, `notebook` or `shell`.
        show: follows or opens the run, and returns the exit code.
        arguments: the options of `add_creation_options`.
        state: the state of the run for the first message, such as `is starting`.
        reopen: the text for the message after Ctrl-C that says how to show the run again.
        check_start: called with `--detach`, after the id was printed. By default nothing is checked
            and OK is returned.
    """
    print_warnings(run.warnings)
    if arguments.detach:
        print(run.id, flush=True)
        print(f"{kind} {run.id} {state}; {reopen}", file=sys.stderr)
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
