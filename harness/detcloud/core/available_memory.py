"""The memory that a process may still allocate, within the limits of the machine and the
cgroups.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
_UNLIMITED = 1 << 60


def available_bytes(root: Path = ROOT) -> int | None:
    """Return the number of bytes that this process can allocate before a memory limit is reached.

    The limits are the machine's available memory and the limits of the process's cgroups. Return
    None if no limit can be read. `root` is the folder that contains `proc` and `sys`.
    """
    free = [*_free_of_machine(root), *_free_of_cgroups(root)]
    return min(free, default=None)


def _free_of_machine(root: Path) -> list[int]:
    """Return a list with the machine's available bytes, from `proc/meminfo` below `root`.

    Return an empty list if unknown.
    """
    for line in _read(root / "proc" / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return [int(line.split()[1]) * 1024]
    return []


def _free_of_cgroups(root: Path) -> list[int]:
    """Return the free bytes of each limited cgroup of this process, in versions 1 and 2 of cgroups.

    The parents of a cgroup count as well. The list is empty if no cgroup has a limit.
    """
    free = []
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = root / "sys" / "fs" / "cgroup"
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = base / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        place = base / path.strip("/")
        # In a container, the process's own cgroup may be mounted as the root, so `place` may not
        # exist.
        while place.is_relative_to(base):
            free += _free_of_cgroup(place, *names)
            place = place.parent
    return free


def _free_of_cgroup(place: Path, limit: str, usage: str, cache: str) -> list[int]:
    """Return a list with the free bytes of a cgroup, or an empty list if the cgroup has no limit.

    `limit` and `usage` name files in the folder `place`. `cache` names a field of `memory.stat`.
    """
    most, used = _read(place / limit).strip(), _read(place / usage).strip()
    if not most.isdigit() or not used.isdigit() or int(most) >= _UNLIMITED:
        return []
    # The kernel drops inactive pages of files before it refuses an allocation.
    statistics = dict(
        line.split(" ", 1) for line in _read(place / "memory.stat").splitlines() if " " in line
    )
    return [max(0, int(most) - int(used) + int(statistics.get(cache, "0")))]


def _read(path: Path) -> str:
    """Return the content of a file, or "" if the file cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
