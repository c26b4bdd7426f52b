"""The place at which rank 0 of a trial accepts a debugger: a socket file in the trial's home.

Only the trial's user can reach the file. Debuggers have no password, so that other users of the
machine could run code as the trial through a port.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.shared.trial_directory import TrialSpec

FOLDER = ".detcloud-debugger"
"""The folder of the debugger in the trial's home."""
_NAME = "socket"
_DESCRIPTORS = Path("/proc/self/fd")


def debugger_place(spec: TrialSpec) -> dict[str, str]:
    """Return the field `debugger` of a trial's `environment` report.

    The field names the run, and the folder of the code in the trial's file system.
    """
    # The path of the process, not of the user's machine.
    folder = os.getcwd()  # noqa: PTH109
    return {"allocation": spec.allocation_id, "folder": folder}


def bind_debugger(home: Path, listener: socket.socket) -> None:
    """Bind a Unix socket to the file of a trial's home. Replace the file of an earlier program.

    Raises OSError if the file cannot be created.
    """
    folder = home / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / _NAME).unlink(missing_ok=True)
    with _short_path(folder) as path:
        listener.bind(path)


def connect_debugger(home: Path) -> socket.socket:
    """Return a connection with the debugger of the trial with this home.

    Raises OSError if no program of the trial waits for a debugger.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short_path(home / FOLDER) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket in a folder. Linux allows 107 characters in such a path."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_known = _DESCRIPTORS.is_dir()
        yield f"{_DESCRIPTORS}/{descriptor}/{_NAME}" if is_known else str(folder / _NAME)
    finally:
        os.close(descriptor)
