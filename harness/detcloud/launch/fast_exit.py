"""The fast exit of a trial's process: what a program may count on happens, and nothing more.

Threads are joined, atexit functions are called and open files are closed as always; then the
process ends. An interpreter with torch in it would go on to free its objects one by one, up to a
second in a forked process (docs/benchmarks.md, `starts`).
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

_requested_status: list[int] = []
_installations: list[bool] = []


def install_fast_exit() -> None:
    """Register the fast exit, which `exit_process` then uses in this process.

    Must be called before other functions are registered: atexit calls the last one first.
    """
    if not _installations:
        _installations.append(True)
        atexit.register(_end_process)


def exit_process(status: int) -> NoReturn:
    """Raise SystemExit; after `install_fast_exit` the process ends with the atexit functions."""
    _requested_status.append(status)
    sys.exit(status)


def _end_process() -> None:
    if not _requested_status:
        return
    status = _requested_status[-1]
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
    """Close the files that nobody closed, so that what was written to them is flushed.

    Regular files only: to close a pipe could take as long as its other end likes.
    """
    files = [thing for thing in gc.get_objects() if issubclass(type(thing), io.IOBase)]
    for file in sorted(files, key=_closing_rank):
        with contextlib.suppress(Exception):
            if file.writable() and file.fileno() > 2 and _is_regular(file.fileno()):
                file.close()


def _closing_rank(file: io.IOBase) -> int:
    """The rank in closing: text first, then compressors, then bytes, which get what those hold."""
    if isinstance(file, io.TextIOBase):
        return 0
    if isinstance(file, io.BufferedIOBase):
        return 2 if type(file).__module__ == "_io" else 1
    return 3


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
