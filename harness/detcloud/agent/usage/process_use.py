"""The processor time and the memory of an allocation's processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcloud.agent.usage.use_sums import SlotSample

if TYPE_CHECKING:
    from collections.abc import Iterable

PROC = Path("/proc")


class ProcessTotals(NamedTuple):
    """Sums over the processes of an allocation."""

    ticks: int
    """The processor time of the processes and of their ended children, in ticks of the kernel."""
    memory_bytes: int
    """The resident memory. Memory that processes share counts several times."""


def read_totals(processes: Iterable[int], proc: Path = PROC) -> ProcessTotals | None:
    """Return the sums over the processes. None if no process can be read."""
    ticks = pages = 0
    was_read = False
    for process in processes:
        try:
            text = (proc / str(process) / "stat").read_text(errors="replace")
            fields = text.rpartition(")")[2].split()
            # utime, stime, cutime and cstime of proc_pid_stat(5). The kernel adds the time of an
            # ended child to the parent, so that the sum over both processes does not change.
            ticks += sum(int(field) for field in fields[11:15])
            pages += int(fields[21])
        except (OSError, ValueError, IndexError):
            continue
        was_read = True
    return ProcessTotals(ticks, pages * _page_bytes()) if was_read else None


def machine_memory_bytes(proc: Path = PROC) -> int:
    """Return the machine's memory. 0 if unknown."""
    try:
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def cpu_sample(
    before: ProcessTotals, after: ProcessTotals, elapsed_ms: int, cores: float, memory_bytes: float
) -> SlotSample:
    """Return the use between two sums, at most 100 %.

    Time of processes that another program has waited for is lost, so that the use may be too low,
    but never negative.

    Args:
        elapsed_ms: the time between the sums.
        cores: the cores of the allocation's slots.
        memory_bytes: the memory of the allocation's slots. 0: unknown.
    """
    busy_ms = max(0, after.ticks - before.ticks) * 1000 / _ticks_per_second()
    share = busy_ms / (elapsed_ms * cores) if elapsed_ms > 0 and cores > 0 else 0.0
    memory = after.memory_bytes / memory_bytes if memory_bytes > 0 else 0.0
    return SlotSample(min(100.0, 100 * share), min(1.0, memory))


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")
