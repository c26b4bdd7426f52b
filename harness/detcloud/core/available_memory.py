"""The memory that a process may still take: of its machine, and of the cgroups that it lies in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
_UNLIMITED = 1 << 60


def available_bytes(root: Path = ROOT) -> int | None:
    """The bytes that this process may take before the machine or a limit of its container's is
    exhausted; None where nothing tells. `root` has `proc` and `sys` below it.
    """
    free = [*_free_of_machine(root), *_free_of_cgroups(root)]
    return min(free, default=None)


def _free_of_machine(root: Path) -> list[int]:
    for line in _read(root / "proc" / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return [int(line.split()[1]) * 1024]
    return []


def _free_of_cgroups(root: Path) -> list[int]:
    """The bytes left in each limited cgroup above the process; of both versions of cgroups."""
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
        # A container may see its own cgroup as the root of them all.
        while place.is_relative_to(base):
            free += _free_of_cgroup(place, *names)
            place = place.parent
    return free


def _free_of_cgroup(place: Path, limit: str, usage: str, cache: str) -> list[int]:
    most, used = _read(place / limit).strip(), _read(place / usage).strip()
    if not most.isdigit() or not used.isdigit() or int(most) >= _UNLIMITED:
        return []
    # Pages of files that were not used for long are given up first.
    statistics = dict(
        line.split(" ", 1) for line in _read(place / "memory.stat").splitlines() if " " in line
    )
    return [max(0, int(most) - int(used) + int(statistics.get(cache, "0")))]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
