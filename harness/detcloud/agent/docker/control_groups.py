"""The processes of a container, by the control group that the kernel names for each process."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC = Path("/proc")


def group_processes(first: int, proc: Path = PROC) -> list[int]:
    """Return the ids of the processes in the control group of the process `first` and in subgroups.

    Return an empty list if the process does not exist, or if its group is the root: then the group
    would contain processes of other containers.
    """
    group = _read_group(proc / str(first)) if first > 0 else ""
    if group in ("", "/"):
        return []
    found = []
    for folder in proc.glob("[0-9]*"):
        other = _read_group(folder)
        if other == group or other.startswith(f"{group}/"):
            found.append(int(folder.name))
    return found


def _read_group(process: Path) -> str:
    """Return the path of a process's control group. "" if the process has ended.

    With version 2 of control groups, the file has one line, `0::PATH`. With version 1, the line of
    the controller `pids` is used.
    """
    with contextlib.suppress(OSError):
        for line in (process / "cgroup").read_text(errors="replace").splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if number == "0" or "pids" in controllers.split(","):
                return path
    return ""
