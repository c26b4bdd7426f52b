"""`detcloud dev`: a shell on a machine of the cluster that works in a folder of this machine."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.cli.commands.lost_runs import is_lost
from detcloud.cli.commands.places import (
    create_interactive_run,
    has_ended,
    open_place,
    wait_for_place,
)
from detcloud.cli.commands.shell import shell_endpoint
from detcloud.cli.framework.argument_types import parse_count, parse_id
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import FAILED, INTERRUPTED, OK
from detcloud.cli.framework.options import add_overrides_option, confirm
from detcloud.cli.framework.polling import ends_soon
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.hints import print_warnings
from detcloud.cli.rendering.output import render_json
from detcloud.cli.rendering.terminal import print_remark
from detcloud.client.command import SHELL, Command, read_command
from detcloud.client.dev_state import DevState
from detcloud.client.folder_sync import FolderSync
from detcloud.client.home import Home
from detcloud.client.ignore_rules import IgnoreRules
from detcloud.client.ssh_files import SshFiles, SshHost
from detcloud.client.sync_thread import SyncThread
from detcloud.client.trial_folder import TrialFolder
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_sync.folder import FileRefused, FolderContent, SyncedFolder
from detcloud.shared.tunnel.services import FOLDER

if TYPE_CHECKING:
    from detcloud.cli.commands.place_tunnels import PlaceTunnel

FILE_MEGABYTES = 100
FINISH_SECONDS = 120.0
"""The time in which the last differences are transferred after the terminal has closed."""
LOSSES_MAX = 5
"""The most consecutive losses of machines before a terminal opened."""
NAMES_SHOWN = 5
EDITOR_SECONDS = 1.0
"""The interval between looks at the tunnel and the synchronisation of an editor."""


def add_dev_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `run_dev`: DIR, the options, and a program after `--`.

    The attributes that `create_interactive_run` reads without an option of this command have their
    defaults.
    """
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder to work in (default: this folder). `-- PROGRAM` after all options runs a "
        "program instead of a terminal",
    )
    parser.add_argument("--pool", metavar="NAME", help="the resource pool of the machine")
    parser.add_argument("--slots", type=parse_count, metavar="N", help="the number of slots")
    parser.add_argument("--image", metavar="IMAGE", help="the container image")
    parser.add_argument(
        "--config-file", type=Path, metavar="FILE", help="a YAML file with further settings"
    )
    add_overrides_option(parser, example="resources.slots=0")
    parser.add_argument(
        "--template", metavar="NAME", help="a template that provides missing settings"
    )
    parser.add_argument(
        "--max-file-size",
        type=parse_count,
        default=FILE_MEGABYTES,
        metavar="MB",
        help="leave out larger files (default: %(default)s)",
    )
    parser.add_argument(
        "--attach", type=parse_id, metavar="ID", help="open a shell that `--keep` left running"
    )
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="after a loss of the machine, run PROGRAM again without a question",
    )
    parser.add_argument("--keep", action="store_true", help="leave the shell running at the end")
    parser.add_argument(
        "--code",
        action="store_true",
        help="open the folder in VS Code instead of a terminal, and print its command",
    )
    parser.set_defaults(program=[], mounts=[], workspace=None, includes=[], restored_from=None)


def run_dev(arguments: Namespace) -> int:
    """Work in a folder on a machine of the cluster, and return the exit code of the terminal or
    program.

    Create a shell, or open the shell of `--attach`, and keep both folders the same while the
    terminal is open. After a loss of the machine, create another shell from the folder as it is
    here. A program runs again only with `--rerun` or after a question. Kill the shell at the end,
    unless `--keep` is given, the connection broke, or files could not be transferred. Return FAILED
    if the shell has ended or the connection broke.

    Raises:
        RefusedConfigError: the cluster refused the settings.
        DetcloudError: DIR is no folder or in use, options exclude each other, the cluster refuses
            the shell or the tunnel, a program was lost without `--rerun`, or a request failed.
    """
    home = Home.from_environment()
    _check_folder(arguments.folder, home)
    if arguments.code and arguments.program:
        raise DetcloudError("--code opens VS Code, so it excludes a program")
    # Closing the window must not leave a paid machine behind.
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    home.create_folder()
    session = DevSession(arguments)
    with session.state.hold_lock():
        session.state.prune_backups(time.time())
        return _run_shells(session, arguments)


def _check_folder(folder: Path, home: Home) -> None:
    """Raise DetcloudError unless the path is a folder that a machine of the cluster may change."""
    if not folder.is_dir():
        raise DetcloudError(f"{folder} is not a folder")
    real = os.path.realpath(folder)
    for secret in (Path.home(), home.folder):
        if Path(os.path.realpath(secret)).is_relative_to(real):
            raise DetcloudError(
                f"{folder} contains {secret}, whose settings programs on the machine could then "
                "read and change; choose a folder below"
            )


def _run_shells(session: DevSession, arguments: Namespace) -> int:
    """Work in a shell, and in a new shell after each loss of a machine. Return an exit code."""
    losses = 0
    while True:
        shell = session.open_shell()
        code = session.run_session(shell)
        if code is not None:
            return code
        if not is_lost(shell):
            return FAILED
        losses = 0 if session.has_opened else losses + 1
        if losses == LOSSES_MAX:
            raise DetcloudError(f"{LOSSES_MAX} machines in a row were lost during the start")
        _report(f"the machine of shell {shell.id} was lost")
        if session.has_opened and arguments.program and not _may_run_again(arguments):
            return FAILED
        arguments.attach = None
        _report(f"another shell starts with the files of {arguments.folder}")


def _may_run_again(arguments: Namespace) -> bool:
    """Return whether a program runs again after the loss of a machine: with `--rerun`, or after a
    yes.

    Raises:
        DetcloudError: stdin is not a terminal, and `--rerun` was not given.
    """
    if arguments.rerun:
        return True
    program = shlex.join(arguments.program)
    if not sys.stdin.isatty():
        raise DetcloudError(
            f"`{program}` may have run in part, so it does not run again without --rerun"
        )
    return confirm(f"`{program}` may have run in part. Run it again?", Namespace(yes=False))


class DevSession:
    """The shells of a call of `detcloud dev`: a shell, and a new shell after each loss."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._folder = Path(os.path.realpath(arguments.folder))
        self.state = DevState(Home.from_environment().folder, self._folder)
        self._rules, self._here = self._read_folder()
        # The files before the upload to a new shell. None for a shell that existed.
        self._uploaded: FolderContent | None = None
        # Whether the machine has nothing that is missing here, and the missing files.
        self._is_safe = False
        self._missing: list[str] = []
        self.has_opened = False
        """Whether the terminal, program or editor of the present shell has been opened."""
        self._thread: SyncThread | None = None
        self._is_ending = False

    def open_shell(self) -> Command:
        """Create a shell with the files of the folder, or fetch the shell of `--attach`."""
        arguments = self._arguments
        self._is_safe, self._missing = arguments.attach is None, []
        self.has_opened = self._is_ending = False
        if (former := getattr(arguments, "client", None)) is not None:
            former.close()
        # A thread of a lost shell may still use the former objects.
        self._thread, (self._rules, self._here) = None, self._read_folder()
        if arguments.attach is not None:
            self._uploaded = None
            return read_command(connect(arguments), arguments.attach, SHELL)
        # Listed before the upload, so that a change during the upload is noticed.
        try:
            self._uploaded = self._here.scan()
        except (FileRefused, OSError) as error:
            raise DetcloudError(f"{self._folder} cannot be uploaded: {error}") from None
        arguments.context = self._folder
        settings = {
            "resources.resource_pool": arguments.pool,
            "resources.slots": arguments.slots,
            "environment.image": arguments.image,
        }
        chosen = [
            f"{name}={render_json(value, indent=None)}"
            for name, value in settings.items()
            if value is not None
        ]
        given = arguments.overrides
        arguments.overrides = [*given, *chosen]
        try:
            shell = create_interactive_run(SHELL, arguments)
        finally:
            arguments.overrides = given
        print_warnings(shell.warnings)
        print(f"shell {shell.id} is starting", file=sys.stderr)
        return shell

    def _read_folder(self) -> tuple[IgnoreRules, SyncedFolder]:
        """Return the folder's rules, and the folder of this machine. Raises DetcloudError if
        `.detignore` is invalid.
        """
        rules, size = IgnoreRules(self._folder), self._arguments.max_file_size * 1_000_000
        return rules, SyncedFolder(self._folder, file_bytes_max=size, is_synced=rules.names)

    def run_session(self, shell: Command) -> int | None:
        """Synchronise the folders and open the terminal, and return the exit code. Then kill the
        shell, or print how to open the shell again.

        Return None if the shell has ended or the connection broke. The reason of an end is printed
        to stderr. Ctrl-C before the terminal opens returns INTERRUPTED.
        """
        try:
            code = self._run_in_shell(shell)
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            self._leave(shell)
        return code

    def _run_in_shell(self, shell: Command) -> int | None:
        place = wait_for_place(shell, SHELL)
        if place is None:
            return None
        client = self._arguments.client
        with open_place(
            client, shell, place, idle_seconds=0, services=(FOLDER,), on_notice=self._hurry
        ) as tunnel:
            _, token = shell_endpoint(tunnel.read_location())
            there = TrialFolder(
                tunnel.open_service(FOLDER), file_bytes_max=self._here.file_bytes_max
            )
            sync = self._begin_sync(shell, there)
            path = there.locate() if self._arguments.code else ""
            self._is_safe, self.has_opened, is_broken = False, True, False
            thread = self._thread = SyncThread(sync, _report)
            if self._is_ending:
                thread.hurry()
            try:
                code = self._open(shell, tunnel, token, path)
                is_broken = code is None
            finally:
                has_all = thread.finish(FINISH_SECONDS)
                if not thread.is_alive:
                    self._missing = sync.missing
                    self._store_common(shell, sync)
                # After a broken connection, programs of the terminal may still run.
                self._is_safe = has_all and not is_broken
        if code is None:
            _wait_for_end(shell)
        return code

    def _open(self, shell: Command, tunnel: PlaceTunnel, token: str, path: str) -> int | None:
        """Open the terminal, program or editor, and return the exit code. Return None if the
        connection broke.
        """
        if self._arguments.code:
            assert self._thread is not None
            return run_editor(shell, path, tunnel, self._thread)
        # Imported here, because other commands do not change the terminal's settings.
        from detcloud.cli.local.terminal_session import run_session

        return run_session(tunnel.local_port, token, self._arguments.program)

    def _hurry(self) -> None:
        """Transfer changes more often, because the machine or the shell may end soon."""
        self._is_ending = True
        if self._thread is not None:
            self._thread.hurry()

    def _begin_sync(self, shell: Command, there: TrialFolder) -> FolderSync:
        """Make the folders equal before the terminal opens."""
        sync = FolderSync(
            self._here,
            there,
            rules=self._rules,
            backups=self.state.new_backups(shell.id),
            report=_report,
        )
        if self._uploaded is not None:
            sync.adopt({name: entry.digest for name, entry in self._uploaded.files.items()})
        else:
            sync.common = self.state.take_common(shell.id, self._arguments.client.url)
        try:
            sync.finish()
        except OSError as error:
            raise DetcloudError(f"{self._folder} cannot be read: {error}") from None
        return sync

    def _store_common(self, shell: Command, sync: FolderSync) -> None:
        """Store the common contents, so that `--attach` recognises deleted files."""
        try:
            self.state.store_common(shell.id, self._arguments.client.url, sync.common)
        except OSError as error:
            _report(f"the state of {self._folder} cannot be stored: {error}")

    def _leave(self, shell: Command) -> None:
        """Kill a shell if this machine has all files, or print how to open the shell again. Do
        nothing if the shell has ended.

        Raises:
            DetcloudError: a request to the cluster failed. A sentence names the command that ends
                the shell.
        """
        is_killed = self._is_safe and not self._arguments.keep
        try:
            shell.refresh()
            if not shell.has_ended and is_killed:
                shell.kill()
        except DetcloudError:
            _report(f"shell {shell.id} may still run; end it with `detcloud shell kill {shell.id}`")
            raise
        if shell.has_ended or is_killed:
            self.state.forget(shell.id)
            if is_killed and self.has_opened:
                _report(f"all changes are in {self._arguments.folder}; shell {shell.id} has ended")
            return
        folder = shlex.quote(str(self._arguments.folder))
        _report(
            f"shell {shell.id} keeps its slots{self._reason_to_keep()}; open it again with "
            f"`detcloud dev --attach {shell.id} {folder}`, end it with `detcloud shell kill "
            f"{shell.id}`"
        )

    def _reason_to_keep(self) -> str:
        """Return why a shell is not killed although `--keep` was not given, or ""."""
        if self._is_safe:
            return ""
        if not self._missing:
            return ", because this machine may lack changes of it"
        more = len(self._missing) - NAMES_SHOWN
        names = ", ".join(self._missing[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f", because this machine lacks {names}"


def run_editor(shell: Command, path: str, tunnel: PlaceTunnel, thread: SyncThread) -> int | None:
    """Open a folder of the machine in VS Code, and print the command. Wait until Ctrl-C.

    VS Code starts only if it is installed, and if the settings of `detcloud ssh config` exist.
    Return OK after Ctrl-C. Return None if the tunnel or the synchronisation has ended; the reason
    is printed to stderr.

    Args:
        shell: the shell.
        path: the absolute path of the folder on the machine.
        tunnel: the open tunnel to the shell.
        thread: the thread that keeps the folders the same.
    """
    host = SshHost(shell.id, False).name
    command = ["code", "--remote", f"ssh-remote+{host}", path]
    print(shlex.join(command), flush=True)
    _report("the folders are kept the same until Ctrl-C")
    if not SshFiles.from_environment().config.exists():
        _report(f"VS Code finds the host {host} after `detcloud ssh config --install`")
    elif found := shutil.which("code"):
        subprocess.Popen([found, *command[1:]], stdin=subprocess.DEVNULL)
    try:
        while thread.is_alive:
            if reason := tunnel.wait(EDITOR_SECONDS):
                _report(reason)
                return None
    except KeyboardInterrupt:
        return OK
    return None


def _wait_for_end(shell: Command) -> None:
    """Wait a moment for the end of a disconnected shell, and print the reason."""
    ends_soon(shell)
    if not has_ended(shell, SHELL):
        _report(f"the connection to shell {shell.id} was lost")


def _report(text: str) -> None:
    """Print a sentence to stderr, also while the terminal is in raw mode. Ignore a closed
    terminal, so that the last changes are still transferred.
    """
    with contextlib.suppress(OSError):
        print_remark("dev", text)


HANDLERS: Handlers = {"dev": Handler(add_dev_arguments, run_dev)}
