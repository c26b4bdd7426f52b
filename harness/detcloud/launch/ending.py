"""Leaving a trial's process: everything that a program may count on, and nothing more.

To take apart an interpreter with torch in it takes up to a second in a forked process, object by
object. Threads are joined, atexit functions are called and open files are closed as always; then
the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import stat
import sys
from typing import NoReturn

_status: list[int] = []
_registered: list[bool] = []


def register() -> None:
    """Have the process left so. To be called first: atexit calls the last registered first."""
    if not _registered:
        _registered.append(True)
        atexit.register(_leave)


def leave(status: int) -> NoReturn:
    """Raises SystemExit; with `register` nothing is taken apart after the atexit functions."""
    _status.append(status)
    sys.exit(status)


def _leave() -> None:
    if not _status:
        return
    status = _status[-1]
    _close_files()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            # What the interpreter would end with, were it to flush.
            status = 120
    os._exit(status)


def _close_files() -> None:
    """What was written and not flushed belongs into the files, also those nobody closed.

    Files in the narrow sense: to close a pipe could take as long as its other end likes.
    """
    files = [each for each in gc.get_objects() if issubclass(type(each), io.IOBase)]
    for file in sorted(files, key=_layer):
        with contextlib.suppress(Exception):
            if file.writable() and file.fileno() > 2 and _is_regular(file.fileno()):
                file.close()


def _layer(file: io.IOBase) -> int:
    """Text before what compresses, that before bytes: the upper ones hold what the lower lack."""
    if isinstance(file, io.TextIOBase):
        return 0
    if isinstance(file, io.BufferedIOBase):
        return 2 if type(file).__module__ == "_io" else 1
    return 3


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
