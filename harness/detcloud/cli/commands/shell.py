"""`detcloud shell`: starts and opens shells on machines of the cluster."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from typing import Any

from detcloud.cli.commands.lost_runs import show_with_restarts
from detcloud.cli.commands.places import (
    add_restore_option,
    check_start,
    create_interactive_run,
    has_ended,
    open_place,
    read_location,
    wait_for_place,
    warnings_of_limits,
)
from detcloud.cli.commands.run_creation import add_creation_options, program_words, show_new_run
from detcloud.cli.commands.run_description import describe_handler
from detcloud.cli.commands.run_verbs import add_id_argument, load_run, run_handlers
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED
from detcloud.cli.framework.options import add_replaced_option
from detcloud.client import Client
from detcloud.client.command import SHELL, Command
from detcloud.shared.errors import DetcloudError

WITH_SSH = "`detcloud ssh ID` opens a shell with SSH, and takes options of `ssh`"
SHOW_SSH = "`detcloud shell show-ssh-command ID` prints the command"


def add_start_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `start_shell`: PROGRAM and the options of `add_creation_options`.
    `--show-ssh-command` of Determined ends with a usage error.
    """
    _add_program_argument(parser)
    add_creation_options(parser)
    add_restore_option(parser)
    add_replaced_option(parser, "--show-ssh-command", instead=SHOW_SSH)


def start_shell(arguments: Namespace) -> int:
    """Start a shell on the cluster, and open the shell in this terminal or run a program in the
    shell. Return the exit code of the shell or program.

    A local cluster is started if no cluster is configured or running. The wait for a free slot has
    no limit. Return FAILED if the shell has ended or the connection broke. A shell that was started
    for a program is killed when the program ends. Other shells keep running. If the machine of an
    interactive shell is lost, another shell starts with the files. Ctrl-C during the start leaves
    the shell running and returns INTERRUPTED. With `--detach`, print the id, wait for the start for
    at most a minute, and open nothing.

    Raises:
        RefusedConfigError: the cluster refused the settings.
        DetcloudError: a program was combined with `--detach`, the shell's address or port cannot be
            used, or the cluster refuses a tunnel. Or options exclude each other, a file cannot be
            read, or a request failed.
    """
    words = _program(arguments)
    if words and arguments.detach:
        raise DetcloudError(
            f"--detach does not run {words[0]}: start the shell with --detach, then run the "
            "program with `detcloud shell open ID PROGRAM`; or use `detcloud command run`"
        )
    shell = create_interactive_run(SHELL, arguments)

    def show(shell: Command) -> int:
        client = arguments.client
        return show_new_run(
            shell,
            SHELL,
            lambda: (_run_program if words else _open)(client, shell, words),
            arguments,
            state="is starting",
            reopen=f"open it with `detcloud shell open {shell.id}`",
            check_start=lambda: check_start(shell, SHELL),
        )

    # A program may have had effects, so that it does not run again unasked.
    return show(shell) if words else show_with_restarts(shell, SHELL, show, arguments)


def add_open_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `open_shell`: ID and PROGRAM. `--show-ssh-command` of Determined ends
    with a usage error.
    """
    add_id_argument(parser)
    _add_program_argument(parser)
    add_replaced_option(parser, "--show-ssh-command", instead=SHOW_SSH)


def open_shell(arguments: Namespace) -> int:
    """Open a shell in this terminal, or run a program in the shell, and return the exit code. The
    shell keeps running, and a notice on stderr says so.

    Words that begin with a hyphen are options of `ssh`, as for Determined: then OpenSSH's client
    replaces this process.

    Wait without a time limit until a new shell has started. Return FAILED if the shell has ended or
    the connection broke, after printing the reason to stderr.

    Raises:
        DetcloudError: no cluster is available, or the id is unknown or not a shell. Or the shell's
            address or port cannot be used, or a request failed.
    """
    words = program_words(arguments.words)
    if words and words[0].startswith("-"):
        # Imported here, because a shell without such options needs no SSH.
        from detcloud.cli.commands.ssh import become_ssh

        become_ssh(arguments, arguments.command_id, words)
    shell = load_run(SHELL, arguments)
    return _open(arguments.client, shell, _program(arguments))


def shell_endpoint(fields: dict[str, Any]) -> tuple[int, str]:
    """Return the port at which a shell listens, and the shell's token.

    Args:
        fields: the fields of the location file, which the shell's program has written.

    Raises:
        DetcloudError: the fields have no port and token.
    """
    port, token = fields.get("port"), fields.get("token")
    if not isinstance(port, int) or not 0 < port < 65_536 or not isinstance(token, str):
        raise DetcloudError("the shell's file has no port with a token")
    return port, token


def _add_program_argument(parser: ArgumentParser) -> None:
    """Add the argument PROGRAM: all remaining words, stored as the list `words`, empty for a shell.
    The list may begin with `--`.
    """
    parser.add_argument(
        "words",
        nargs=REMAINDER,
        metavar="PROGRAM",
        help="run this program with its arguments instead of a shell",
    )


def _program(arguments: Namespace) -> list[str]:
    """Return the words of the program to run; empty for a shell. A leading `--` is removed.

    Raises:
        DetcloudError: the first word begins with a hyphen, for example an option of ssh.
    """
    words = program_words(arguments.words)
    if words and words[0].startswith("-"):
        raise DetcloudError(f"{words[0]} is not the name of a program; {WITH_SSH}")
    return words


def _run_program(client: Client, shell: Command, words: list[str]) -> int:
    """Run the program for which the shell was started, kill the shell, and return the program's
    exit code.

    Wait without a time limit for the start and the program. If the shell has ended or the
    connection breaks, print the reason to stderr. Then return FAILED without a kill, because the
    program may still run.

    Raises:
        DetcloudError: the shell's address cannot be read, the port refuses connections, or a
            request failed. The shell keeps running.
    """
    code = _connect(client, shell, words)
    if code is None:
        return FAILED
    shell.kill()
    return code


def _open(client: Client, shell: Command, words: list[str]) -> int:
    """Open the shell, or run a program in the shell, and return the exit code. The shell keeps
    running.

    Wait without a time limit until a queued or starting shell has reported its port. Afterwards,
    print a notice to stderr that the shell keeps its slots. If the shell has ended or the
    connection broke, print the reason to stderr instead, and return FAILED.

    Args:
        words: the program and its arguments; empty for a shell.

    Raises:
        DetcloudError: the shell's address cannot be read, the port refuses connections, or a
            request failed.
    """
    code = _connect(client, shell, words)
    if code is None:
        return FAILED
    print(
        f"shell {shell.id} keeps its slots; open it again with `detcloud shell open {shell.id}`, "
        f"end it with `detcloud shell kill {shell.id}`",
        file=sys.stderr,
    )
    return code


def _connect(client: Client, shell: Command, words: list[str]) -> int | None:
    """Connect this terminal to the shell, and return the exit code of the remote program or shell.

    Wait without a time limit until the shell has started, and until the program ends. The
    connection uses a local port and a token, not SSH. The port of a shell on another machine leads
    through a tunnel. On a terminal, every key is sent, Ctrl-C included. Return None if the shell
    has ended or the connection broke, after printing the reason to stderr.

    Args:
        words: the program and its arguments; empty for a shell.

    Raises:
        DetcloudError: the shell's address cannot be read, the port refuses connections, or a
            request failed.
    """
    place = wait_for_place(shell, SHELL)
    if place is None:
        return None
    # Imported here, because other commands do not change the settings of the terminal.
    from detcloud.cli.local.terminal_session import run_session

    fields = read_location(client, place)
    if fields is not None:
        with warnings_of_limits(client, shell):
            code = run_session(*shell_endpoint(fields), words)
    else:
        with open_place(client, shell, place, idle_seconds=0) as tunnel:
            _, token = shell_endpoint(tunnel.read_location())
            code = run_session(tunnel.local_port, token, words)
    if code is None and not has_ended(shell, SHELL):
        print(
            f"the connection to shell {shell.id} was lost; it keeps its slots: open it again with "
            f"`detcloud shell open {shell.id}`, end it with `detcloud shell kill {shell.id}`",
            file=sys.stderr,
        )
    return code


HANDLERS: Handlers = {
    "shell start": Handler(add_start_arguments, start_shell),
    "shell open": Handler(add_open_arguments, open_shell),
    "shell describe": describe_handler(SHELL),
    **run_handlers(SHELL),
}
