"""Processes of this machine as /proc shows them; none where there is no /proc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process, named by id and start time together, since ids are used again."""

    pid: int
    parent: int
    started_ticks: int
    command: str


def list_descendants(pid: int) -> list[Process]:
    """List the processes that `pid` started, those that they started, and so on; parents first."""
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
    """Read a process; None when it is gone or a zombie."""
    try:
        # The name in brackets may hold spaces and brackets itself.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), " ".join(words).strip())


def is_alive(process: Process) -> bool:
    """Whether the process still runs, and its id was not reused by another process."""
    now = read_process(process.pid)
    return now is not None and now.started_ticks == process.started_ticks


def pss_bytes(pid: int) -> int | None:
    """Memory of a process, each shared page divided among its users; None when unknown."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
