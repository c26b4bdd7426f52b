"""`detcloud up`, `down` and `status`: the local cluster, and the load of any cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import Any

from detcloud.cli.commands.resource_pool import apply_configuration_file, print_applied_changes
from detcloud.cli.framework.argument_types import parse_port, parse_slots
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.exit_codes import UNREACHABLE
from detcloud.cli.framework.options import add_yes_option, confirm
from detcloud.cli.local.config_checker import CLUSTER_CHECKER, check_file
from detcloud.cli.local.server import (
    ServerChoices,
    find_answering_server,
    server_command,
    server_environment,
    start_server,
    stop_server,
)
from detcloud.cli.local.server_modules import BACKUPS, run_module
from detcloud.cli.local.start_options import add_place_options
from detcloud.cli.rendering.conditions import condition_text
from detcloud.cli.rendering.output import add_output_options, print_value
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import Item, field_column, render_table, time_text
from detcloud.cli.rendering.terminal import is_live, terminal_width
from detcloud.client import Client
from detcloud.client.endpoint import Endpoint, find_endpoint
from detcloud.client.home import Home, ServerRecord
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text
from detcloud.shared.processes import Process, list_descendants, pss_bytes, read_process
from detcloud.shared.version import __version__

# Files that `down --purge` keeps: credentials for other clusters, and the lock of `down` itself.
PURGE_KEEPS = frozenset({"credentials.json", "lock"})
RUNNING_STATES = ("ACTIVE", "PAUSED")

POOL_COLUMNS = tuple(
    field_column(title, name)
    for title, name in (
        ("Pool", "name"),
        ("Slots", "slots"),
        ("Free", "free_slots"),
        ("Running", "running"),
        ("Queued", "queued"),
        ("Agents", "agents"),
    )
)


def add_up_arguments(parser: ArgumentParser) -> None:
    """Add the options of `start_cluster`: `--slots`, `--port`, `--config`, `--state`,
    `--foreground` and those of `add_place_options`. Without an option, the value is None, or False
    for `--foreground`.
    """
    parser.add_argument(
        "--slots",
        type=parse_slots,
        metavar="N",
        help="how many trials run at the same time, on CPUs (default: the detected GPUs or CPUs)",
    )
    parser.add_argument(
        "--port",
        type=parse_port,
        metavar="P",
        help="the port to listen on, on 127.0.0.1 (default: the port of the last start, 8470 at "
        "first; the next free port if another program has it)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a cluster configuration with resource pools (default: the current one)",
    )
    parser.add_argument(
        "--state",
        metavar="URL",
        help="the place of the cluster's state: a database postgresql://USER@HOST/DATABASE, or "
        "`file` for a file in the data folder; a present state is copied to the new place "
        "(default: the present place, at first a file)",
    )
    add_place_options(parser)
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="stay in the foreground until Ctrl-C and print the log",
    )


def start_cluster(arguments: Namespace) -> int:
    """Start the local cluster, print the address and a sign-in link, and return 0.

    A configuration of `--config` is checked first, on this machine. If the local cluster already
    runs, print its address without a link, and apply the configuration to the running cluster. With
    `--foreground`, this process becomes the server, and the function does not return. A progress
    line is drawn on a terminal's stderr.

    Raises:
        DetcloudError: the configuration was refused, the server is not installed, the start failed,
            or a cluster with another version, port or number of slots runs.
    """
    home = Home.from_environment()
    if arguments.config is not None:
        check_file(arguments.config, [], module=CLUSTER_CHECKER)
    running = find_answering_server(home)
    if running is not None:
        return _report_running(home, running, arguments)
    if arguments.foreground:
        _become_server(home, arguments)
    record = start_server(
        home, _choices(arguments), state=arguments.state, on_wait=_show_start_progress
    )
    if is_live(sys.stderr):
        print("\r\x1b[K", end="", file=sys.stderr)
    print(f"the local cluster is up at {record.url} (pid {record.pid}, data in {home.folder})")
    _print_page_link(home, record)
    return 0


def _print_page_link(home: Home, record: ServerRecord) -> None:
    """Print a sign-in link for the web page. The link is created on the server and works once.
    Print nothing if the server refuses or does not answer.

    Raises:
        DetcloudError: the token file of the home folder cannot be read.
    """
    with Client(record.url, home.token()) as client, contextlib.suppress(DetcloudError):
        print(
            "the web page (this sign-in link works once, within five minutes): "
            f"{client.sign_in_link()}"
        )


def add_down_arguments(parser: ArgumentParser) -> None:
    """Add the options of `stop_cluster`: `--purge` and `--yes`, False by default."""
    parser.add_argument(
        "--purge", action="store_true", help="also delete all experiments and checkpoints"
    )
    add_yes_option(parser)


def stop_cluster(arguments: Namespace) -> int:
    """Stop the local cluster, and print whether a cluster was running. With `--purge`, also delete
    the content of the home folder, after confirmation and the stop.

    Return 1 without a stop if the user declined. Otherwise return 0, also if no cluster was
    running. The wait for the end has a limit, after which processes are killed. The credentials
    file is kept. Objects in a bucket are kept, and a line names the bucket.

    Raises:
        DetcloudError: the folder to delete is not a home folder of detcloud, or with `--purge`
            stdin is not a terminal and `--yes` is missing.
        OSError: a file cannot be deleted.
    """
    home = Home.from_environment()
    question = f"Delete all experiments and checkpoints in {home.folder}?"
    if arguments.purge and not confirm(question, arguments):
        print("nothing was stopped or deleted")
        return 1
    print("the local cluster was stopped" if stop_server(home) else "no local cluster was running")
    if arguments.purge:
        bucket = home.bucket_address()
        _delete_database_state(home)
        _purge(home)
        if bucket is not None:
            print(f"model code and logs stay in {bucket}; delete the objects there yourself")
    return 0


def add_status_arguments(parser: ArgumentParser) -> None:
    """Add the output form of `show_status`: `--json` or `--yaml`."""
    add_output_options(parser, csv=False)


def show_status(arguments: Namespace) -> int:
    """Print the status of the configured cluster, and return 0. With `--json` or `--yaml`, print
    all fields.

    If no cluster is configured or running, print a sentence on stdout, or `running: false` in the
    other forms, and return UNREACHABLE. The local cluster's status also has the processes and their
    memory. Nothing is started.

    Raises:
        DetcloudError: the configured cluster does not answer or refuses the request, or the address
            or token is unusable.
    """
    endpoint = find_endpoint(arguments.url)
    home = Home.from_environment()
    if endpoint is None:
        if arguments.form != "text":
            print_value({"running": False, "home": str(home.folder)}, arguments.form)
        else:
            print(f"no cluster runs here (data folder {home.folder}); `detcloud up` starts one")
        return UNREACHABLE
    status = _gather_status(endpoint)
    if arguments.form != "text":
        print_value(status, arguments.form)
    else:
        _print_status(status)
    return 0


def _report_running(home: Home, running: ServerRecord, arguments: Namespace) -> int:
    """Print that the cluster already runs, apply the configuration of `--config`, and return 0.

    The changes of the configuration are printed. Nothing is applied if a setting differs. The
    options `--port` and `--slots` are compared only if given, and the slots only if an agent has
    enrolled.

    Raises:
        DetcloudError: the running cluster has another version, port, number of slots or place of
            the state, `--clouds` is given, or a request failed.
        RefusedConfigError: the cluster refused the configuration.
    """
    print(f"the local cluster is already running at {running.url} (pid {running.pid})")
    differences = []
    if running.version != __version__:
        differences.append(f"version {running.version}, not {__version__}")
    port = int(running.url.rpartition(":")[2])
    if arguments.port not in (None, port):
        differences.append(f"port {port}, not {arguments.port}")
    if arguments.slots is not None:
        slots = _count_slots(home, running)
        if slots and slots != arguments.slots:
            differences.append(f"{count_text(slots, 'slot')}, not {arguments.slots}")
    if arguments.state is not None and arguments.state != (home.state_url() or "file"):
        differences.append("its state at another place than --state")
    if arguments.clouds is not None:
        differences.append("remote accounts that only a start changes")
    if not differences:
        if arguments.config is not None:
            with Client(running.url, home.token()) as client:
                print_applied_changes(apply_configuration_file(client, arguments.config))
        return 0
    raise DetcloudError(
        f"the running cluster has {' and '.join(differences)}; "
        "to replace it, run `detcloud down` and this command again; experiments then continue"
    )


def _count_slots(home: Home, running: ServerRecord) -> int:
    """Return the number of slots of all agents of the running cluster, fetched from the server: 0
    before the agent has enrolled.

    Raises:
        DetcloudError: the server does not answer, or the token file cannot be read.
    """
    with Client(running.url, home.token()) as client:
        return sum(len(agent.slots) for agent in client.agents())


def _become_server(home: Home, arguments: Namespace) -> None:
    """Replace this process by the server. The function does not return.

    The home folder and its lock file are created first.

    Args:
        arguments: `slots`, `port`, `config`, `files`, `state` and `clouds`. None is the server's
            choice.

    Raises:
        DetcloudError: the home folder cannot be created, or the server is not installed.
    """
    home.create_folder()
    command = server_command(home, _choices(arguments))
    os.execve(sys.executable, command, server_environment(arguments.state))


def _choices(arguments: Namespace) -> ServerChoices:
    """Return the settings of a new server from the options of `up`."""
    return ServerChoices(
        slots=arguments.slots,
        port=arguments.port,
        config=arguments.config,
        files=arguments.files,
        files_credentials=arguments.files_credentials,
        clouds=arguments.clouds,
    )


def _show_start_progress(seconds: float) -> None:
    """Redraw a line on stderr with the seconds since the start. Draw nothing if stderr is not a
    live terminal.
    """
    if is_live(sys.stderr):
        print(
            f"\r\x1b[Kstarting a local cluster ... {seconds:.1f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _delete_database_state(home: Home) -> None:
    """Delete the state of a cluster whose state is in a database, and print a confirmation. Do
    nothing if the state is in a file.

    Raises:
        DetcloudError: the database cannot be used, another server uses the state, or the server is
            not installed.
    """
    if home.state_url() is None:
        return
    done = run_module(BACKUPS, ["--home", str(home.folder), "delete-state"])
    if done.returncode:
        raise DetcloudError(f"the state was not deleted: {done.stderr.strip()}")
    print("the state was deleted from the database")


def _purge(home: Home) -> None:
    """Delete the content of the home folder, except for PURGE_KEEPS, and print a confirmation. Do
    nothing without a home folder.

    The lock of the home folder is waited for without a time limit. A link to a folder is deleted,
    but not the folder.

    Raises:
        DetcloudError: the folder is not a home folder of detcloud, or is the user's home or `/`.
            Nothing is deleted.
        OSError: a file cannot be deleted. Earlier deletions remain.
    """
    folder = home.folder
    if not folder.is_dir():
        return
    if not (folder / "server.lock").exists() or folder in (Path.home(), Path("/")):
        raise DetcloudError(f"{folder} is not a data folder of detcloud; nothing was deleted")
    with home.hold_lock():
        for entry in folder.iterdir():
            if entry.name in PURGE_KEEPS:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    print(f"{folder} was emptied")


def _gather_status(endpoint: Endpoint) -> Item:
    """Return the cluster's overview, `running`, `url`, and the numbers of active and paused
    experiments, by stored state under `experiments` and by condition under `conditions`.

    If the endpoint is the running local cluster, add `home`, `pid`, `started_ms` and `processes`.
    `processes` has the memory of the server and its descendants.

    Raises:
        DetcloudError: the cluster does not answer or refuses a request.
    """
    with Client(endpoint.url, endpoint.token) as client:
        overview = client.overview()
        open_items = [one.data for one in client.experiments(states=RUNNING_STATES)]
    status: Item = {"running": True, "url": endpoint.url, **overview}
    states = [item["state"] for item in open_items]
    status["experiments"] = {state: states.count(state) for state in RUNNING_STATES}
    counts = Counter(condition_text(item) for item in open_items)
    status["conditions"] = {"running": 0, "queued": 0, "paused": 0, **counts}
    record = endpoint.home.running_server() if endpoint.home else None
    if endpoint.home is not None and record is not None:
        status["home"] = str(endpoint.home.folder)
        status["pid"] = record.pid
        status["started_ms"] = record.started_ms
        status["processes"] = [
            _process_status(process) for process in _server_processes(record.pid)
        ]
    return status


def _server_processes(pid: int) -> list[Process]:
    """Return the server's process, followed by all descendants. A server that has ended is
    omitted.
    """
    server = read_process(pid)
    return ([server] if server else []) + list_descendants(pid)


def _process_status(process: Process) -> dict[str, Any]:
    """Return the id, the memory and the command of a process. The memory `pss_bytes` is None for an
    ended or unreadable process.
    """
    return {"pid": process.pid, "pss_bytes": pss_bytes(process.pid), "command": process.command}


def _print_status(status: Item) -> None:
    """Print a line for each fact, and the table of pools, to stdout. Lines on the process and the
    memory appear only for the local cluster.

    Args:
        status: the result of `_gather_status`.
    """
    print(f"url          {status['url']}")
    print(f"version      {status['version']}")
    if "pid" in status:
        print(f"pid          {status['pid']}, since {time_text(status['started_ms'])}")
        print(f"data folder  {status['home']}")
    counts = ", ".join(f"{count} {state}" for state, count in status["conditions"].items())
    print(f"experiments  {counts}")
    if "processes" in status:
        sizes = [process["pss_bytes"] or 0 for process in status["processes"]]
        processes = count_text(len(sizes), "process", "processes")
        print(f"memory       {bytes_text(sum(sizes))} PSS in {processes}")
        for process, size in zip(status["processes"], sizes, strict=True):
            print(f"             {process['pid']:>7} {bytes_text(size):>10} {process['command']}")
    print(render_table(POOL_COLUMNS, status["resource_pools"], terminal_width(sys.stdout)))


HANDLERS: Handlers = {
    "cluster up": Handler(add_up_arguments, start_cluster),
    "cluster down": Handler(add_down_arguments, stop_cluster),
    "cluster status": Handler(add_status_arguments, show_status),
}
