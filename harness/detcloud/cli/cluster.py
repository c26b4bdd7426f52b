"""Starts, stops and shows the local cluster; shows a remote one."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import detcloud
from detcloud import DetcloudError
from detcloud.cli.commands import UNREACHABLE
from detcloud.cli.config import CLUSTER_CHECKER, checked
from detcloud.cli.options import add_yes_option, confirmed
from detcloud.cli.output import add_output_options, print_record, print_value
from detcloud.cli.processes import Process, descendants, pss_bytes, read
from detcloud.cli.resource_pool import applied_file, print_applied
from detcloud.cli.server import server_command, server_environment, start, stop
from detcloud.cli.session import client_of
from detcloud.cli.table import Column, Item, field, text_table, time_text
from detcloud.cli.terminal import bytes_text, counted, is_live, width_of
from detcloud.client import Client, NoCluster
from detcloud.client.endpoint import Endpoint, find_endpoint
from detcloud.client.home import Home, ServerRecord
from detcloud.http import Unreachable

# What `down --purge` leaves: the way to other clusters, and the lock it holds.
PURGE_KEEPS = frozenset({"credentials.json", "lock"})
SLOTS_MAX = 1024
RUNNING_STATES = ("ACTIVE", "PAUSED")

POOL_COLUMNS = tuple(
    field(title, name)
    for title, name in (
        ("Pool", "name"),
        ("Slots", "slots"),
        ("Free", "free_slots"),
        ("Running", "running"),
        ("Queued", "queued"),
        ("Agents", "agents"),
    )
)


def up_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--slots",
        type=_slots,
        metavar="N",
        help="how many trials run at once, on CPUs (default: the GPUs or CPUs found)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="P",
        help="where to listen on 127.0.0.1 (default: a free one, the same as last time if it is)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a cluster configuration, with its resource pools (default: as it is)",
    )
    parser.add_argument(
        "--foreground", action="store_true", help="stay until Ctrl-C, with the log here"
    )


def up(arguments: Namespace) -> int:
    home = Home.from_environment()
    if arguments.config is not None:
        checked(arguments.config, [], module=CLUSTER_CHECKER)
    running = home.server()
    if running is not None:
        return _already(home, running, arguments)
    if arguments.foreground:
        _become_server(home, arguments)
    record = start(
        home,
        slots=arguments.slots,
        port=arguments.port,
        config=arguments.config,
        on_wait=_show_waiting,
    )
    if is_live(sys.stderr):
        print("\r\x1b[K", end="", file=sys.stderr)
    print(f"the local cluster is up at {record.url} (pid {record.pid}, data in {home.folder})")
    return 0


def down_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--purge", action="store_true", help="delete experiments and checkpoints")
    add_yes_option(parser)


def down(arguments: Namespace) -> int:
    home = Home.from_environment()
    question = f"Delete all experiments and checkpoints in {home.folder}?"
    if arguments.purge and not confirmed(question, arguments):
        print("nothing was stopped or deleted")
        return 1
    print("the local cluster was stopped" if stop(home) else "no local cluster was running")
    if arguments.purge:
        _purge(home)
    return 0


def status_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser, csv=False)


def status(arguments: Namespace) -> int:
    """Returns 0 when a cluster answers, as for every command 4 when none does."""
    endpoint = find_endpoint(arguments.url)
    home = Home.from_environment()
    if endpoint is None:
        if arguments.form != "text":
            print_value({"running": False, "home": str(home.folder)}, arguments.form)
        else:
            print(f"no cluster runs here (data folder {home.folder}); `detcloud up` starts one")
        return UNREACHABLE
    facts = _facts(endpoint)
    if arguments.form != "text":
        print_value(facts, arguments.form)
    else:
        _print_facts(facts)
    return 0


def info_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def info(arguments: Namespace) -> int:
    client = client_of(arguments)
    columns = (
        field("URL", "url"),
        field("Cluster", "cluster_id"),
        field("Version", "version"),
        Column("Pools", lambda item: ", ".join(pool["name"] for pool in item["resource_pools"])),
    )
    print_record(columns, {"url": client.url, **client.overview()}, arguments)
    return 0


def version_arguments(parser: ArgumentParser) -> None:
    add_output_options(parser)


def version(arguments: Namespace) -> int:
    """The cluster's too where one answers; without one this is no failure."""
    facts = {"client": detcloud.__version__, "url": None, "cluster": None}
    try:
        client = client_of(arguments)
        facts |= {"url": client.url, "cluster": client.overview()["version"]}
    except (NoCluster, Unreachable):
        pass
    columns = (field("Client", "client"), field("Cluster", "cluster"), field("URL", "url"))
    print_record(columns, facts, arguments)
    return 0


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is no port; expected 1 to 65535")
    return int(text)


def _slots(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= SLOTS_MAX:
        raise ArgumentTypeError(f"{text!r} is no number of slots; expected 1 to {SLOTS_MAX}")
    return int(text)


def _already(home: Home, running: ServerRecord, arguments: Namespace) -> int:
    print(f"the local cluster runs already at {running.url} (pid {running.pid})")
    other = []
    if running.version != detcloud.__version__:
        other.append(f"version {running.version}, this is {detcloud.__version__}")
    port = int(running.url.rpartition(":")[2])
    if arguments.port not in (None, port):
        other.append(f"port {port}, not {arguments.port}")
    if arguments.slots is not None:
        slots = _slots_of(home, running)
        if slots and slots != arguments.slots:
            other.append(f"{counted(slots, 'slot')}, not {arguments.slots}")
    if not other:
        if arguments.config is not None:
            with Client(running.url, home.token()) as client:
                print_applied(applied_file(client, arguments.config))
        return 0
    raise DetcloudError(
        f"it has {' and '.join(other)}; "
        "`detcloud down` and this command again exchange it, the work goes on after that"
    )


def _slots_of(home: Home, running: ServerRecord) -> int:
    """0 while no agent has enrolled yet."""
    with Client(running.url, home.token()) as client:
        return sum(len(agent.slots) for agent in client.agents())


def _become_server(home: Home, arguments: Namespace) -> None:
    home.make()
    command = server_command(home, arguments.slots, arguments.port, arguments.config)
    os.execve(sys.executable, command, server_environment())


def _show_waiting(seconds: float) -> None:
    if is_live(sys.stderr):
        print(
            f"\r\x1b[Kstarting a local cluster ... {seconds:.1f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _purge(home: Home) -> None:
    folder = home.folder
    if not folder.is_dir():
        return
    if not (folder / "server.lock").exists() or folder in (Path.home(), Path("/")):
        raise DetcloudError(f"{folder} does not look like a data folder; nothing was deleted")
    with home.locked():
        for entry in folder.iterdir():
            if entry.name in PURGE_KEEPS:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    print(f"{folder} was emptied")


def _facts(endpoint: Endpoint) -> Item:
    with Client(endpoint.url, endpoint.token) as client:
        overview = client.overview()
        active = [experiment.state for experiment in client.experiments(states=RUNNING_STATES)]
    facts: Item = {"running": True, "url": endpoint.url, **overview}
    facts["experiments"] = {state: active.count(state) for state in RUNNING_STATES}
    record = endpoint.home.server() if endpoint.home else None
    if endpoint.home is not None and record is not None:
        facts["home"] = str(endpoint.home.folder)
        facts["pid"] = record.pid
        facts["started_ms"] = record.started_ms
        facts["processes"] = [_process_facts(process) for process in _processes(record.pid)]
    return facts


def _processes(pid: int) -> list[Process]:
    server = read(pid)
    return ([server] if server else []) + descendants(pid)


def _process_facts(process: Process) -> dict[str, Any]:
    return {"pid": process.pid, "pss_bytes": pss_bytes(process.pid), "command": process.command}


def _print_facts(facts: Item) -> None:
    print(f"url          {facts['url']}")
    print(f"version      {facts['version']}")
    if "pid" in facts:
        print(f"pid          {facts['pid']}, since {time_text(facts['started_ms'])}")
        print(f"data folder  {facts['home']}")
    counts = ", ".join(f"{count} {state}" for state, count in facts["experiments"].items())
    print(f"experiments  {counts}")
    if "processes" in facts:
        sizes = [process["pss_bytes"] or 0 for process in facts["processes"]]
        print(f"memory       {bytes_text(sum(sizes))} PSS in {len(sizes)} processes")
        for process, size in zip(facts["processes"], sizes, strict=True):
            print(f"             {process['pid']:>7} {bytes_text(size):>10} {process['command']}")
    print(text_table(POOL_COLUMNS, facts["resource_pools"], width_of(sys.stdout)))
