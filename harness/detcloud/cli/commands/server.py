"""`detcloud server`: a cluster on machines of your own, as a service for other machines."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import closing
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import parse_slots
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import UNREACHABLE
from detcloud.cli.local.config_checker import CLUSTER_CHECKER, check_file
from detcloud.cli.local.server import server_environment
from detcloud.cli.local.start_options import add_place_options
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import time_text
from detcloud.client import Client
from detcloud.client.home import Home
from detcloud.shared.connections import open_connection
from detcloud.shared.errors import DetcloudError
from detcloud.shared.processes import read_process

DEFAULT_LISTEN = "0.0.0.0:8470"
SECONDS_MAX = 5.0


def add_run_arguments(parser: ArgumentParser) -> None:
    """Add the options of `run_server`. Except for `--listen`, they are unset by default."""
    add_data_option(parser)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_LISTEN,
        help="the IP address and the port to listen at (default: %(default)s, all addresses)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="the address by which clients and agents call the server, such as "
        "https://lab.example:8470 (default: this machine's name and the port)",
    )
    parser.add_argument(
        "--tls-cert",
        type=_parse_path,
        metavar="FILE",
        help="the certificate and its issuers in PEM form, read again after a change (default: a "
        "self-signed certificate, whose digest is printed)",
    )
    parser.add_argument(
        "--tls-key",
        type=_parse_path,
        metavar="FILE",
        help="the key of --tls-cert, without password",
    )
    parser.add_argument(
        "--insecure-http",
        action="store_true",
        help="listen without TLS: everybody in the network can read tokens",
    )
    parser.add_argument(
        "--proxy",
        action="append",
        metavar="ADDRESS[/MASK]",
        help="a reverse proxy whose X-Forwarded-For, -Proto, -Host and -Prefix headers count (may "
        "be repeated); without --tls-cert, other machines can then only call the proxy",
    )
    parser.add_argument(
        "--prefix",
        metavar="/PATH",
        help="the prefix of the server's paths at the proxy (default: the path of --url)",
    )
    role = parser.add_mutually_exclusive_group()
    role.add_argument(
        "--slots",
        type=parse_slots,
        metavar="N",
        help="how many trials this machine runs at the same time, on CPUs (default: the detected "
        "GPUs or CPUs)",
    )
    role.add_argument("--no-agent", action="store_true", help="run no trials on this machine")
    _add_state_options(parser)
    add_backup_options(parser)


def _add_state_options(parser: ArgumentParser) -> None:
    """Add `--config`, `--state` and the options of `add_place_options`, by default None."""
    parser.add_argument(
        "--config",
        type=_parse_path,
        metavar="FILE",
        help="a cluster configuration with resource pools (default: the current one)",
    )
    parser.add_argument(
        "--state",
        metavar="URL",
        help="the place of the cluster's state: a database postgresql://USER@HOST/DATABASE, or "
        "`file`; a present state is copied to the new place (default: the present place, at first "
        "a file)",
    )
    add_place_options(parser)


def add_backup_options(parser: ArgumentParser) -> None:
    """Add the options of scheduled backups. By default, their values are None."""
    parser.add_argument(
        "--backup-to",
        type=_parse_backup_place,
        metavar="PLACE",
        help="write backups of the state to a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX",
    )
    parser.add_argument(
        "--backup-every",
        metavar="TIME",
        help="the time between two backups, such as 30m, 24h or 7d (default: 24h)",
    )
    parser.add_argument(
        "--backup-keep",
        type=parse_slots,
        metavar="N",
        help="how many archives of this cluster to keep (default: 7)",
    )


def add_data_option(parser: ArgumentParser) -> None:
    """Add `--data`, the path of the data folder, with the folder of `detcloud up` as default."""
    parser.add_argument(
        "--data",
        type=_parse_path,
        metavar="FOLDER",
        help="the data folder (default: DETCLOUD_HOME, or ~/.detcloud)",
    )


def run_server(arguments: Namespace) -> int:
    """Replace this process by a server that other machines call. The function does not return.

    A configuration of `--config` is checked first, on this machine. The data folder is created.

    Raises:
        DetcloudError: the configuration was refused, the server is not installed, the data folder
            cannot be created, or a server already runs in the data folder.
    """
    if arguments.config is not None:
        check_file(arguments.config, [], module=CLUSTER_CHECKER)
    home = data_home(arguments)
    home.create_folder()
    running = home.running_server()
    if running is not None:
        raise DetcloudError(
            f"a server already runs in {home.folder} (pid {running.pid}); stop it first, or choose "
            "another folder with --data"
        )
    # -P keeps the working folder, which may hold a module of any name, out of the imports.
    command = [sys.executable, "-P", "-m", "local_cluster", "--home", str(home.folder)]
    command += server_options(arguments)
    os.execve(sys.executable, command, server_environment(arguments.state))


def server_options(arguments: Namespace) -> list[str]:
    """Return the options of a server as words, without the data folder and the place of the state.

    Args:
        arguments: the options of `add_run_arguments`.
    """
    values = {
        "--listen": arguments.listen,
        "--url": arguments.url,
        "--tls-cert": arguments.tls_cert,
        "--tls-key": arguments.tls_key,
        "--prefix": arguments.prefix,
        "--backup-to": arguments.backup_to,
        "--backup-every": arguments.backup_every,
        "--backup-keep": arguments.backup_keep,
        "--slots": arguments.slots,
        "--config": arguments.config,
        "--files": arguments.files,
        "--files-credentials": arguments.files_credentials,
        "--clouds": arguments.clouds,
    }
    words = []
    for option, value in values.items():
        words += [] if value is None else [option, str(value)]
    for proxy in arguments.proxy or ():
        words += ["--proxy", proxy]
    words += ["--insecure-http"] if arguments.insecure_http else []
    return words + (["--no-agent"] if arguments.no_agent else [])


def data_home(arguments: Namespace) -> Home:
    """Return the data folder of `--data`, or the folder of `detcloud up`."""
    return Home.from_environment() if arguments.data is None else Home(arguments.data)


def add_code_arguments(parser: ArgumentParser) -> None:
    """Add the option `--data` of `print_code`."""
    add_data_option(parser)


def print_code(arguments: Namespace) -> int:
    """Print how the administrator signs in with a new code, and return 0.

    The code works once, within five minutes, for `detcloud login` or the page. It is created on the
    running server, with the token of the data folder.

    Raises:
        DetcloudError: no server runs in the data folder, or the token cannot be read.
    """
    home = data_home(arguments)
    record = home.running_server()
    if record is None:
        raise DetcloudError(f"no server runs in {home.folder}; --data names another folder")
    fields = _record_fields(home)
    with Client(record.url, home.token()) as client:
        code = client.sign_in_link().rpartition("/")[2]
    url = fields.get("public_url") or record.url
    pinned = f" --pin {fields['pin']}" if fields.get("pin") else ""
    print("sign in as the administrator with one of these lines (once, within five minutes):")
    print(f"  detcloud login {url}{pinned} --code {code}")
    print(f"  {url}/ui/#/sign-in/{code}")
    return 0


def add_status_arguments(parser: ArgumentParser) -> None:
    """Add the options of `show_status`: `--data` and the output form (`--json` or `--yaml`)."""
    add_data_option(parser)
    add_output_options(parser, csv=False)


def show_status(arguments: Namespace) -> int:
    """Print the address, the certificate and the health of the server of a data folder.

    Return 0 if the server is ready, otherwise UNREACHABLE. Nothing is started.

    Raises:
        DetcloudError: a file of the data folder cannot be read.
    """
    home = data_home(arguments)
    record = home.running_server()
    if record is None:
        if arguments.form == "text":
            print(f"no server runs in {home.folder}")
        else:
            print_value({"running": False, "data": str(home.folder)}, arguments.form)
        return UNREACHABLE
    fields = _record_fields(home)
    status: dict[str, Any] = {
        "running": True,
        "ready": _is_ready(record.url),
        "url": fields.get("public_url") or record.url,
        "local_url": record.url,
        "pin": fields.get("pin"),
        "pid": record.pid,
        "started_ms": record.started_ms,
        "version": record.version,
        "data": str(home.folder),
        "state": "database" if home.state_url() else "file",
        "backup": _read_fields(home, "backup") or None,
        "has_agent": read_process(int(fields.get("agent_pid") or 0)) is not None,
    }
    if arguments.form == "text":
        _print_status(status)
    else:
        print_value(status, arguments.form)
    return 0 if status["ready"] else UNREACHABLE


def _print_status(status: dict[str, Any]) -> None:
    readiness = "ready" if status["ready"] else "not ready"
    print(f"the server at {status['url']} is {readiness} (version {status['version']})")
    print(f"pid {status['pid']}, since {time_text(status['started_ms'])}, data in {status['data']}")
    if status["pin"]:
        print(f"certificate: {status['pin']}")
    print(f"state: in a {status['state']}")
    if status["backup"]:
        print("\n".join(_backup_lines(status["backup"])))
    print(f"agent of this machine: {'running' if status['has_agent'] else 'none'}")


def _backup_lines(backup: dict[str, Any]) -> list[str]:
    """Return the lines about the last scheduled backup, and about a failure since then."""
    place = backup.get("place")
    lines = [f"backups: none yet in {place}"]
    if "taken_ms" in backup:
        size = bytes_text(int(backup["size_bytes"]))
        lines = [f"last backup: {time_text(backup['taken_ms'])}, {size}, in {place}"]
    if "failed_ms" in backup:
        lines.append(f"backups fail since then: {backup.get('error')}")
    return lines


def _is_ready(url: str) -> bool:
    """Return whether the server at an address of this machine answers as ready."""
    with closing(open_connection(url, SECONDS_MAX)) as connection:
        try:
            connection.request("GET", "/readyz")
            return bool(connection.getresponse().status == 200)
        except OSError:
            return False


def _record_fields(home: Home) -> dict[str, Any]:
    """Return all fields of the record of the running server, or {} if the record is unreadable."""
    return _read_fields(home, "server")


def _read_fields(home: Home, name: str) -> dict[str, Any]:
    """Return all fields of a record of the data folder, or {} if the record is unreadable."""
    try:
        fields = json.loads((home.folder / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _parse_backup_place(text: str) -> str:
    """Return the address of a bucket, or an absolute path."""
    return text if "://" in text else str(_parse_path(text))


def _parse_path(text: str) -> Path:
    """Return an absolute path, because a service has another working folder."""
    if not text:
        raise ArgumentTypeError("must not be empty")
    return Path(text).expanduser().absolute()


HANDLERS: Handlers = {
    "server run": Handler(add_run_arguments, run_server),
    "server code": Handler(add_code_arguments, print_code),
    "server status": Handler(add_status_arguments, show_status),
}
