"""The end of a process without the interpreter's shutdown. Output is flushed, files are closed."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import stat
import sys
from typing import NoReturn

# The interpreter's own exit code if output cannot be flushed.
UNFLUSHED_STATUS = 120
requested_status: list[int] = []
"""The exit codes that were requested for this process. The last one counts."""


def end_process(status: int) -> NoReturn:
    """Write all buffered output to files, and end the process at once with the exit code.

    Regular files that are open for writing are closed, and stdout and stderr are flushed.
    Running threads, exit handlers and `finally` blocks are ignored, and pipes and sockets are not
    flushed. The exit code is `status`, or UNFLUSHED_STATUS if stdout or stderr cannot be flushed.
    Errors of other files are ignored.
    """
    _close_files()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = UNFLUSHED_STATUS
    os._exit(status)


def _close_files() -> None:
    """Flush and close the regular files that are open for writing. Ignore errors.

    Pipes stay open, since closing a pipe may block. The standard streams stay open as well.
    """
    files = [thing for thing in gc.get_objects() if issubclass(type(thing), io.IOBase)]
    for file in sorted(files, key=_closing_rank):
        with contextlib.suppress(Exception):
            if file.writable() and file.fileno() > 2 and _is_regular(file.fileno()):
                file.close()


def _closing_rank(file: io.IOBase) -> int:
    """Return the rank for closing: 0 text files, 1 compressors, 2 buffered files, 3 raw files.

    Each kind flushes into the next.
    """
    if isinstance(file, io.TextIOBase):
        return 0
    if isinstance(file, io.BufferedIOBase):
        return 2 if type(file).__module__ == "_io" else 1
    return 3


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
