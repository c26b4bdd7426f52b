"""`detcloud command`: runs a program on the cluster."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from functools import partial

from detcloud.cli.commands.logs import follow_log
from detcloud.cli.commands.run_creation import (
    add_creation_options,
    create_run,
    overrides_of,
    program_words,
    show_new_run,
)
from detcloud.cli.commands.run_description import describe_handler
from detcloud.cli.commands.run_verbs import run_handlers
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.state_sentences import state_sentence
from detcloud.cli.rendering.table import shorten_message
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.command import COMMAND, Command, create_command
from detcloud.shared.errors import DetcloudError


def add_run_arguments(parser: ArgumentParser) -> None:
    """Add the argument PROGRAM, all remaining words, stored as the list `words`, and the options of
    `add_creation_options`.
    """
    parser.add_argument(
        "words",
        nargs=REMAINDER,
        metavar="PROGRAM",
        help="the program and its arguments, after `--` if they look like options; a single word "
        "is run by `sh`, several words are run without a shell",
    )
    add_creation_options(parser)


def run_command(arguments: Namespace) -> int:
    """Run a program on the cluster, print the program's log to stdout, and return the exit code of
    the program.

    A local cluster is started if no cluster is configured or running. The wait has no limit.
    Warnings and a notice with the id are printed to stderr. Ctrl-C leaves the program running and
    returns INTERRUPTED. If the command ends without an exit code, return FAILED. With `--detach`,
    print only the id to stdout, and return 0 at once.

    Raises:
        RefusedConfigError: the cluster refused the settings.
        DetcloudError: no program was given, `--volume` and `--config-file` were combined, or a file
            cannot be read. Or no cluster is available, or a request failed.
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


def _create(arguments: Namespace) -> Command:
    """Create a command with the program and the settings of the arguments, and return the command.
    The files of `--context` and `--include` are uploaded.

    A local cluster is started if no cluster is configured or running.

    Raises:
        RefusedConfigError: the cluster refused the settings. The message has a line for each
            problem.
        DetcloudError: neither a program nor `--config-file` was given, `--volume` and
            `--config-file` were combined, or a file cannot be read. Or no cluster is available, or
            a request failed.
        KeyboardInterrupt: after a hint on stderr, because the command may have been created.
    """
    words = program_words(arguments.words)
    if not words and arguments.config_file is None:
        raise DetcloudError("no program was given; name a program, such as `nvidia-smi`")
    overrides = overrides_of(arguments)
    client = connect(arguments, start=True)
    return create_run(partial(create_command, client, words), COMMAND, overrides, arguments)


def _follow(command: Command) -> int:
    """Print the log of a command until the command ends, without a time limit. Return the program's
    exit code.

    An exit code other than 0 is also printed to stderr. If the command ended without an exit code,
    or a limit ended the program, print the state and the reason to stderr, and return FAILED.

    Raises:
        DetcloudError: a request failed.
    """
    trial = follow_log(command)
    command.refresh()
    # A run that a limit has ended is complete, but its program is not. The message has the reason.
    is_complete = trial is not None and trial.state == "COMPLETED"
    if is_complete and not command.message:
        return OK
    code = None if trial is None or is_complete else trial.exit_code
    if code is not None:
        print(f"command {command.id} ended with exit code {code}", file=sys.stderr)
        return code or FAILED
    message = shorten_message(command.message) if command.message else ""
    reason = f": {sanitize(message)}" if message else ""
    print(f"{state_sentence(f'command {command.id}', command.state)}{reason}", file=sys.stderr)
    return FAILED


HANDLERS: Handlers = {
    "command run": Handler(add_run_arguments, run_command),
    "command describe": describe_handler(COMMAND),
    **run_handlers(COMMAND),
}
