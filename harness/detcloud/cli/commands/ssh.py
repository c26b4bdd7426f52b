"""`detcloud ssh`: terminals, programs and editors on the machine of a running trial."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from detcloud.cli.commands.run_creation import program_words
from detcloud.cli.commands.run_verbs import add_id_argument
from detcloud.cli.commands.tunnel import find_only_trial
from detcloud.cli.framework.argument_types import parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, OK
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client.endpoint import URL_VARIABLE, configured_url
from detcloud.client.ssh_files import (
    PREFIX,
    SshFiles,
    SshHost,
    check_prefix,
    find_program,
    include_config,
)

OWN_CONFIG = Path("~/.ssh/config")


def add_ssh_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `run_ssh`: ID, WORDS and `--trial`, which comes before ID."""
    parser.add_argument("--trial", action="store_true", help="ID is a trial, not an experiment")
    parser.add_argument(
        "id", type=parse_id, metavar="ID", help="an experiment, command, notebook or shell"
    )
    parser.add_argument(
        "words",
        nargs=REMAINDER,
        metavar="COMMAND",
        help="options of `ssh`, such as -L 6006:localhost:6006, and a command to run instead of a "
        "shell",
    )


def run_ssh(arguments: Namespace) -> int:
    """Replace this process by OpenSSH's client, connected with the machine of a running trial.

    So the exit code is that of the command, or 255 without a connection.

    Raises:
        DetcloudError: OpenSSH's client is not installed, no cluster is available, or no trial or
            several trials run.
    """
    words = program_words(arguments.words)
    become_ssh(arguments, arguments.id, words, is_trial=arguments.trial)


def become_ssh(
    arguments: Namespace, number: int, words: Sequence[str], *, is_trial: bool = False
) -> NoReturn:
    """Replace this process by OpenSSH's client, with further options and a command in `words`.

    Raises:
        DetcloudError: see `ssh_command`.
    """
    command = [*ssh_command(arguments, number, is_trial=is_trial), *words]
    arguments.client.close()
    sys.stdout.flush()
    os.execv(find_program("ssh"), command)


def ssh_command(arguments: Namespace, number: int, *, is_trial: bool = False) -> list[str]:
    """Return the command of OpenSSH's client that opens a shell on the machine of a trial.

    The client is stored in `arguments.client`, and `main` closes the client. A missing key of this
    machine is created.

    Raises:
        DetcloudError: OpenSSH's client is not installed, no cluster is available, or no trial or
            several trials run.
    """
    find_program("ssh")
    client = connect(arguments)
    if not is_trial:
        # A clear error here is better than an error of the proxy inside an error of OpenSSH.
        find_only_trial(client, number, "ssh --trial {}")
    files = SshFiles.from_environment()
    files.load_or_create_key()
    options = [f"-o{name}={value}" for name, value in files.settings(client.url).items()]
    return ["ssh", *options, SshHost(number, is_trial).name]


def add_config_arguments(parser: ArgumentParser) -> None:
    """Add the options of `write_config`: `--install` and `--prefix`."""
    parser.add_argument(
        "--install",
        action="store_true",
        help=f"also include the settings in {OWN_CONFIG}, after a copy of the file",
    )
    parser.add_argument(
        "--prefix",
        default=PREFIX,
        metavar="NAME",
        help="the beginning of the host names, for settings of several clusters (default: "
        "%(default)s)",
    )


def write_config(arguments: Namespace) -> int:
    """Write and print settings of OpenSSH's client for all trials of a cluster. Return OK.

    With `--install`, the user's own file includes the settings. Notes on stderr say what changed.

    Raises:
        DetcloudError: OpenSSH's client is not installed, the prefix is invalid, no cluster is
            configured or running, or a file cannot be written.
    """
    check_prefix(arguments.prefix)
    url = configured_url(arguments.url)
    if url is None:
        # Raises the error that other commands raise without a cluster.
        url = connect(arguments).url
    files = SshFiles.from_environment()
    files.load_or_create_key()
    # Editors start the client without the variables of this terminal.
    is_chosen = arguments.url or os.environ.get(URL_VARIABLE) or arguments.prefix != PREFIX
    print(files.write_config(arguments.prefix, url if is_chosen else None), end="")
    if not arguments.install:
        print(
            f"written to {files.config}; `detcloud ssh config --install` includes the file in "
            f"{OWN_CONFIG}",
            file=sys.stderr,
        )
        return OK
    copy = include_config(files.config, OWN_CONFIG.expanduser())
    kept = f"; the former file is {copy}" if copy else ""
    print(
        f"{OWN_CONFIG} includes {files.config}{kept}; connect with `ssh {arguments.prefix}-ID`",
        file=sys.stderr,
    )
    return OK


def add_proxy_arguments(parser: ArgumentParser) -> None:
    """Add the argument of `run_proxy`: HOST."""
    parser.add_argument("host", metavar="HOST", help=f"{PREFIX}-ID or {PREFIX}-trial-ID")


def run_proxy(arguments: Namespace) -> int:
    """Carry the bytes of an SSH client, which are stdin and stdout, to the SSH server of a trial.

    Before the first byte, exchange the keys of both ends, and store the key of the server. Return
    OK after the client has left, and FAILED, with the reason on stderr, if the tunnel has ended.

    Raises:
        DetcloudError: no cluster is available, no trial or several trials run, the cluster refuses
            the tunnel, or no server can be started in the allocation.
    """
    # OpenSSH ends the command with SIGHUP; the tunnel must then be closed on the cluster.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _end)
    # Imported here, because the other commands of this module carry no bytes.
    from detcloud.client.ssh_proxy import SshProxy

    host = SshHost.parse(arguments.host)
    files = SshFiles.from_environment()
    key = files.load_or_create_key()
    client = connect(arguments)
    trial_id = host.id if host.is_trial else find_only_trial(client, host.id, "ssh --trial {}")
    with SshProxy(client, trial_id, _report) as proxy:
        files.store_host_key(host.name, proxy.exchange_keys(key))
        return OK if proxy.carry(sys.stdin.fileno(), sys.stdout.fileno()) else FAILED


def show_ssh_command(arguments: Namespace) -> int:
    """Print the command of OpenSSH's client that opens a shell, as a line for a shell. Return OK.

    Raises:
        DetcloudError: see `ssh_command`.
    """
    print(shlex.join(ssh_command(arguments, arguments.command_id)))
    return OK


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _report(text: str) -> None:
    """Print a sentence to stderr. OpenSSH's client has set the terminal to its raw mode."""
    end = "\r\n" if sys.stderr.isatty() else "\n"
    print(f"detcloud: {sanitize(text)}", file=sys.stderr, end=end, flush=True)


HANDLERS: Handlers = {
    "ssh": Handler(add_ssh_arguments, run_ssh),
    "ssh config": Handler(add_config_arguments, write_config),
    "ssh proxy": Handler(add_proxy_arguments, run_proxy),
    "shell show-ssh-command": Handler(add_id_argument, show_ssh_command),
}
