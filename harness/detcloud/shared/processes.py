"""The processes of this machine in /proc. Systems without /proc show no processes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process. The id and the start time together identify it, because ids are reused."""

    pid: int
    parent: int
    """The parent's process id."""
    started_ticks: int
    """The start time in clock ticks since the machine's boot."""
    command: str
    """The command line, with a space between the words."""


def list_descendants(pid: int) -> list[Process]:
    """List all descendants of the process `pid`, parents before children.

    The process `pid` is not listed. Zombies and their children are omitted. Return an empty list
    without descendants, if no such process exists, and on systems without /proc.
    """
    by_parent: dict[int, list[Process]] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (process := read_process(int(entry.name))) is not None:
            by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        children = by_parent.get(waiting.pop(0), [])
        found.extend(children)
        waiting.extend(child.pid for child in children)
    return found


def read_process(pid: int) -> Process | None:
    """Read the process with this id. Return None if the process is a zombie or does not exist.

    Undecodable bytes of the command line are replaced. Return None on systems without /proc.
    """
    try:
        # The program's name in brackets may contain spaces, brackets and undecodable bytes.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode().split()
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), " ".join(words).strip())


def is_alive(process: Process) -> bool:
    """Whether the process still runs. False for a zombie, and if another process has the id.

    False for every process on systems without /proc.
    """
    now = read_process(process.pid)
    return now is not None and now.started_ticks == process.started_ticks


def pss_bytes(pid: int) -> int | None:
    """Return the memory of a process in bytes, with each shared page divided among its users.

    Return None if the process has ended, or if the system does not report the memory to this user.
    """
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
