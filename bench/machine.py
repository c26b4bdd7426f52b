"""Facts about the machine that influence figures."""

import os
import platform
import sqlite3
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

BUSY_SHARE = 0.5
SYNCED_WRITES = 50


class Machine(NamedTuple):
    """Facts about this machine. `load`: average over a minute. `sync_ms`: duration of a synced
    write of a page.
    """

    cores: int
    python: str
    sqlite: str
    system: str
    load: float
    sync_ms: float

    @property
    def is_busy(self) -> bool:
        """Whether the load of other processes makes measured rates unreliable."""
        return self.load > BUSY_SHARE * self.cores


def this_machine() -> Machine:
    """Return the current facts about this machine."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        system=f"{platform.system()} {platform.machine()}",
        load=os.getloadavg()[0],
        sync_ms=_sync_ms(),
    )


def header(machine: Machine) -> str:
    """The lines above the table."""
    facts = (
        f"{machine.cores} cores, {machine.system}, Python {machine.python}, "
        f"SQLite {machine.sqlite}, load {machine.load:.2f}, "
        f"a synced write takes {machine.sync_ms:.2g} ms"
    )
    if not machine.is_busy:
        return facts
    return f"{facts}\nwarning: the machine is busy; rates and times are worse than its own"


def _sync_ms() -> float:
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        descriptor = os.open(Path(folder) / "synced", os.O_CREAT | os.O_WRONLY)
        try:
            return median(_synced_write_ms(descriptor) for _ in range(SYNCED_WRITES))
        finally:
            os.close(descriptor)


def _synced_write_ms(descriptor: int) -> float:
    started = time.perf_counter()
    os.write(descriptor, bytes(4096))
    os.fsync(descriptor)
    return (time.perf_counter() - started) * 1000


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has had, in user code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
