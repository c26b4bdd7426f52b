"""Kills what runs for clusters' homes once those who started it are gone, however they ended.

A program of its own, which imports nothing of ours: each line of its input names a home, and the
end of its input is the end of whoever holds the other side. Its own command and environment name
no home, so that nobody takes it for a part of a cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

PROC = Path("/proc")
# What is killed may have begun something meanwhile.
PASSES_MAX = 20


def main() -> None:
    """Wait for the end of the input, and end what is left."""
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
    """Whether the home is in the process's command, environment or working directory."""
    folder = PROC / str(pid)
    with contextlib.suppress(OSError):
        words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        return home in words or os.fsencode((folder / "cwd").readlink()).startswith(home)
    return False


if __name__ == "__main__":
    main()
