"""A program that kills the processes of clusters' homes after the tests end, in any way.

The program imports no module of ours. Each line of its input names a home, and the end of the input
is the end of the tests. Its command and environment name no home, so that it does not count as a
part of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

PROC = Path("/proc")
# A killed process may have started another process meanwhile.
PASSES_MAX = 20


def main() -> None:
    """Wait for the end of the input, and kill the remaining processes."""
    homes = [os.fsencode(line.strip()) for line in sys.stdin]
    for _ in range(PASSES_MAX):
        left = [pid for pid in pids() if any(mentions(pid, home) for home in homes)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def mentions(pid: int, home: bytes) -> bool:
    """Return whether the home is in the process's command, environment or working directory."""
    folder = PROC / str(pid)
    with contextlib.suppress(OSError):
        words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        return home in words or os.fsencode((folder / "cwd").readlink()).startswith(home)
    return False


if __name__ == "__main__":
    main()
