"""Prints the log of this machine's cluster."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from pathlib import Path
from typing import BinaryIO

from detcloud import DetcloudError
from detcloud.cli.options import count
from detcloud.client.home import Home

POLLING_SECONDS = 0.5
BLOCK_BYTES = 1 << 16


def logs_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--tail", type=count, metavar="LINES", help="only the last lines")


def logs(arguments: Namespace) -> int:
    path = Home.from_environment().log
    try:
        with path.open("rb") as file:
            if arguments.tail is not None:
                for line in deque(file, arguments.tail):
                    _write(line)
            _write_rest(file)
            if arguments.follow:
                _follow(file, path)
    except FileNotFoundError:
        raise DetcloudError(
            f"there is no {path}; `detcloud up` starts a cluster here, and other clusters keep "
            "their logs where they run"
        ) from None
    return 0


def _follow(file: BinaryIO, path: Path) -> None:
    while True:
        time.sleep(POLLING_SECONDS)
        if path.stat().st_size < file.tell():
            # It was emptied, so that what is there now is new.
            file.seek(0)
        _write_rest(file)


def _write_rest(file: BinaryIO) -> None:
    while block := file.read(BLOCK_BYTES):
        _write(block)


def _write(block: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
