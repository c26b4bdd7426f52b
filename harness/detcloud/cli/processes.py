"""Processes of this machine as /proc shows them; nothing is found where there is no /proc."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    """A process; ids are used again, the start time tells whether it is still the same one."""

    pid: int
    parent: int
    started_ticks: int
    command: str


def descendants(pid: int) -> list[Process]:
    """The processes started by `pid`, by them, and so on; parents before their children."""
    by_parent: dict[int, list[Process]] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and (process := read(int(entry.name))) is not None:
            by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        children = by_parent.get(waiting.pop(0), [])
        found.extend(children)
        waiting.extend(child.pid for child in children)
    return found


def read(pid: int) -> Process | None:
    """One process; None when it is gone or a zombie."""
    try:
        # The name in brackets may hold spaces and brackets itself.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return Process(pid, int(fields[1]), int(fields[19]), " ".join(words).strip())


def alive(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.started_ticks == process.started_ticks


def pss_bytes(pid: int) -> int | None:
    """Memory with each shared page divided among those who share it; None when unknown."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None
