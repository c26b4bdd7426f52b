"""`detcloud master`: shows the cluster's server, and prints the log of the local server."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from pathlib import Path
from typing import BinaryIO

from detcloud.cli.framework.argument_types import parse_count
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.session import connect
from detcloud.cli.rendering.output import add_output_options, print_record
from detcloud.cli.rendering.table import Column, field_column
from detcloud.client.home import Home
from detcloud.shared.errors import DetcloudError

POLLING_SECONDS = 0.5
BLOCK_BYTES = 1 << 16

INFO_COLUMNS = (
    field_column("URL", "url"),
    field_column("Cluster", "cluster_id"),
    field_column("Version", "version"),
    Column("Pools", lambda item: ", ".join(pool["name"] for pool in item["resource_pools"])),
)


def show_info(arguments: Namespace) -> int:
    """Print the address, the id, the version and the pools of the cluster as text, CSV, JSON or
    YAML, and return 0. JSON and YAML have all fields.

    Raises:
        DetcloudError: no cluster is available, or the request failed.
    """
    client = connect(arguments)
    print_record(INFO_COLUMNS, {"url": client.url, **client.overview()}, arguments)
    return 0


def add_logs_arguments(parser: ArgumentParser) -> None:
    """Add the options of `print_server_log`: `--follow`, False by default, and `--tail`, None by
    default.
    """
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until Ctrl-C")
    parser.add_argument(
        "--tail", type=parse_count, metavar="LINES", help="print only the last LINES lines"
    )


def print_server_log(arguments: Namespace) -> int:
    """Print the log file of the local server to stdout, and return 0. With `--follow`, print new
    content until Ctrl-C, which raises KeyboardInterrupt.

    With `--tail`, begin with the last lines. The log is read from the home folder, also if no
    server runs.

    Raises:
        DetcloudError: the log does not exist, or was deleted with `--follow`.
        OSError: the log cannot be read.
    """
    path = Home.from_environment().log
    try:
        with path.open("rb") as file:
            if arguments.tail is not None:
                for line in deque(file, arguments.tail):
                    _write_block(line)
            _write_rest(file)
            if arguments.follow:
                _follow_log(file, path)
    except FileNotFoundError:
        raise DetcloudError(
            f"{path} does not exist; `detcloud up` starts a local cluster, and the logs of other "
            "clusters are on their servers"
        ) from None
    return 0


def _follow_log(file: BinaryIO, path: Path) -> None:
    """Print new content of the log forever, with a pause between two looks. The function ends only
    by an exception, for example KeyboardInterrupt.

    Start again at the beginning if the log was truncated. A replaced file is not opened again.

    Args:
        file: the open log, at the place to continue.
        path: the path of the log.

    Raises:
        FileNotFoundError: the log was deleted.
    """
    while True:
        time.sleep(POLLING_SECONDS)
        if path.stat().st_size < file.tell():
            file.seek(0)
        _write_rest(file)


def _write_rest(file: BinaryIO) -> None:
    """Copy the file from the current position to the present end to stdout."""
    while block := file.read(BLOCK_BYTES):
        _write_block(block)


def _write_block(block: bytes) -> None:
    """Write bytes to stdout after text that was printed before, and flush stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


HANDLERS: Handlers = {
    "master info": Handler(add_output_options, show_info),
    "master logs": Handler(add_logs_arguments, print_server_log),
}
