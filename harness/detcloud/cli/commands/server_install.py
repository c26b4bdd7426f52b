"""`detcloud server install` and `uninstall`: the server as a service of systemd."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from detcloud.cli.commands.server import add_run_arguments, server_options
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.local.server import STATE_VARIABLE, server_path
from detcloud.cli.local.systemd_unit import render_unit
from detcloud.shared.errors import DetcloudError

UNIT = Path("/etc/systemd/system/detcloud.service")
ENVIRONMENT = Path("/etc/detcloud/server.env")
DATA = Path("/var/lib/detcloud")
USER = "detcloud"
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def add_install_arguments(parser: ArgumentParser) -> None:
    """Add the options of `install_service`: `--user`, `--print`, and the options of `run_server`.

    The data folder is DATA by default.
    """
    parser.add_argument(
        "--user",
        type=_parse_user,
        default=USER,
        metavar="USER",
        help="the user of the service, who is created if missing (default: %(default)s)",
    )
    parser.add_argument("--print", action="store_true", help="print the files, and write nothing")
    add_run_arguments(parser)
    parser.set_defaults(data=DATA)


def install_service(arguments: Namespace) -> int:
    """Write the unit of a systemd service, print the written files, and return 0.

    Create a missing user, the folder of backups, and a data folder outside /var/lib. The place of
    `--state` is written to ENVIRONMENT, which only root can read. Systemd reads the unit, but the
    service is not started: the last lines say how. With `--print`, print the files without
    passwords, and change nothing.

    Raises:
        DetcloudError: the process is not root's, systemd is missing, the server is not installed,
            or a file cannot be written.
    """
    server_path()
    unit = _render(arguments)
    if arguments.print:
        print(f"# {UNIT}\n{unit}", end="")
        if arguments.state is not None:
            print(f"# {ENVIRONMENT}\n{STATE_VARIABLE}=...")
        return 0
    _require_root()
    try:
        _create_user(arguments.user, arguments.data)
        if arguments.data.parent != DATA.parent:
            _create_folder(arguments.user, arguments.data)
        for folder in _backup_folders(arguments):
            _create_folder(arguments.user, folder)
        if arguments.state is not None:
            _write(ENVIRONMENT, f"{STATE_VARIABLE}={_environment_value(arguments.state)}\n", 0o600)
        _write(UNIT, unit, 0o644)
    except OSError as error:
        raise DetcloudError(f"{error.filename or UNIT}: {error.strerror}") from None
    _run("systemctl", "daemon-reload")
    print("start the server with `systemctl enable --now detcloud`; then")
    print(f"`sudo -u {arguments.user} {_program()} server code --data {arguments.data}`")
    print("prints how to sign in")
    return 0


def add_uninstall_arguments(parser: ArgumentParser) -> None:
    """Add the option of `uninstall_service`: `--yes`."""
    add_yes_option(parser)


def uninstall_service(arguments: Namespace) -> int:
    """Stop the service after confirmation, delete the unit, and return 0. The data folder stays.

    Return 1 without a change if the user declined.

    Raises:
        DetcloudError: the process is not root's, systemd is missing, or stdin is not a terminal and
            `--yes` is missing.
    """
    if not UNIT.exists():
        print("no service is installed")
        return 0
    _require_root()
    if not confirm("Stop the server and remove its service?", arguments):
        print("nothing was stopped or removed")
        return 1
    _run("systemctl", "disable", "--now", UNIT.name)
    for path in (UNIT, ENVIRONMENT):
        if path.exists():
            path.unlink()
            print(f"{path} was deleted")
    _run("systemctl", "daemon-reload")
    print("the data folder and the user stay")
    return 0


def _render(arguments: Namespace) -> str:
    """Return the text of the unit for the options of `install_service`."""
    command = [_program(), "server", "run", "--data", str(arguments.data)]
    try:
        return render_unit(
            [*command, *server_options(arguments)],
            arguments.user,
            arguments.data,
            ENVIRONMENT,
            _written_folders(arguments),
            has_agent=not arguments.no_agent,
        )
    except ValueError as error:
        raise DetcloudError(str(error)) from None


def _program() -> str:
    """Return the path of the `detcloud` program of this installation."""
    beside = Path(sys.executable).with_name("detcloud")
    return str(beside) if beside.exists() else shutil.which("detcloud") or "detcloud"


def _environment_value(text: str) -> str:
    """Return a value of an environment file of systemd, in quotes."""
    if not text.isprintable():
        raise DetcloudError("--state contains a control character")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _require_root() -> None:
    """Raise DetcloudError unless this process is root's and the machine has systemd."""
    if shutil.which("systemctl") is None:
        raise DetcloudError("this machine has no systemd; --print shows the unit")
    if os.geteuid() != 0:
        raise DetcloudError("only root can install a service: use sudo, or see it with --print")


def _create_user(user: str, data: Path) -> None:
    """Create a system user without a login, unless the user exists."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        options = ("--system", "--home-dir", str(data), "--shell", "/usr/sbin/nologin")
        _run("useradd", *options, user)
        print(f"the user {user} was created")


def _create_folder(user: str, folder: Path) -> None:
    """Create a folder of the service's user, unless the folder exists."""
    if folder.exists():
        return
    folder.mkdir(mode=0o700, parents=True)
    shutil.chown(folder, user)
    print(f"{folder} was created")


def _backup_folders(arguments: Namespace) -> list[Path]:
    """Return the folder of scheduled backups. Return [] for a bucket, and without backups."""
    place = arguments.backup_to or ""
    return [Path(place)] if place and "://" not in place else []


def _written_folders(arguments: Namespace) -> list[Path]:
    """Return the folders outside of the data folder that the server writes. Buckets are none."""
    files = arguments.files or ""
    return [*_backup_folders(arguments), *([Path(files)] if files and "://" not in files else [])]


def _write(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    fresh.replace(path)
    print(f"{path} was written")


def _run(*command: str) -> None:
    """Run a program of the system. Raise DetcloudError, with the program's error, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DetcloudError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise DetcloudError(f"{' '.join(command)} failed: {done.stderr.strip()}")


def _parse_user(text: str) -> str:
    if not _USER.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is no name of a user")
    return text


HANDLERS: Handlers = {
    "server install": Handler(add_install_arguments, install_service),
    "server uninstall": Handler(add_uninstall_arguments, uninstall_service),
}
