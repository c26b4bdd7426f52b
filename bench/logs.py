"""The memory of a client that reads a large log, and of the server."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Row, Scale, at_most, progress
from bench.filling import services_to_fill
from bench.reading import fill
from bench.serving import serve_home
from control_plane.agents.logs import TrialLogs
from control_plane.agents.sessions import LogChunk
from detcloud.shared.processes import list_descendants
from local_cluster.home import HomeFolder

MIB = 1 << 20
TARGET_MIB = 64.0
# Larger than an agent's chunks: small files would take longer than the rest of the bench.
CHUNK_BYTES = 4 * MIB
LINE = b"2026-11-28 12:00:00 INFO: " + b"a step of a line as long as logs have them; " * 22 + b"\n"
BAR = b"\r 42%|####      | 420/1000 [00:01<00:02]"
SCRIPT = """
import sys
from detcloud import Client
with Client() as client:
    print(sum(len(piece) for piece in client.trial(int(sys.argv[1])).logs()))
"""
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


def logs(scale: Scale) -> Iterator[Row]:
    """Measure the peak of resident memory while two large logs are read in several ways.

    The first log has many lines. The second log is a progress bar without a newline.
    """
    detcloud = [sys.executable, "-m", "detcloud.cli.main", "trial", "logs"]
    with tempfile.TemporaryDirectory(prefix="detcloud-bench-") as folder:
        home = HomeFolder(Path(folder))
        with progress(f"two logs of {scale.log_bytes / MIB:,.0f} MiB"):
            lines, bar = _fill_logs(home, scale.log_bytes)
        with serve_home(home) as url:
            [server] = [process.pid for process in list_descendants(os.getpid())]
            before = _peak_mib(server)
            token = (Path(folder) / "token").read_text("ascii").strip()
            environment = {**os.environ, "DETCLOUD_URL": url, "DETCLOUD_TOKEN": token}
            for what, words in {
                "trial logs": [*detcloud, str(lines)],
                "trial logs, a progress bar": [*detcloud, str(bar)],
                "trial logs --json": [*detcloud, str(lines), "--json"],
                "trial logs --tail 100,000": [*detcloud, str(lines), "--tail", "100000"],
                "Trial.logs()": [sys.executable, "-c", SCRIPT, str(lines)],
            }.items():
                with progress(what):
                    peak, seconds = _run(words, environment)
                yield at_most(f"{what}: memory", peak, TARGET_MIB, "MiB", beside=f"{seconds:.0f} s")
            growth = _peak_mib(server) - before
            yield at_most("memory of the server beyond its start", growth, TARGET_MIB, "MiB")


def _fill_logs(home: HomeFolder, size: int) -> tuple[int, int]:
    """Write both logs and return the ids of the trials: many lines, then the progress bar."""
    filled = fill(home, 2, 2)
    lines, bar = filled.trials
    with services_to_fill(home) as services:
        for trial, text in ((lines, LINE), (bar, BAR)):
            stored = TrialLogs(services.table, services.objects)
            chunk = text * (CHUNK_BYTES // len(text))
            for offset in range(0, size, len(chunk)):
                marks = ((offset, 1_700_000_000_000 + offset // 1000),)
                put = stored.store_chunk(trial, LogChunk(f"{trial}.1", offset, chunk, marks))
                services.table.commit([put])
    return lines, bar


def _run(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command, and return the peak memory in MiB and the duration in seconds.

    A small process starts the command, because Linux counts memory from before the `exec` too.
    """
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-S", "-c", MEASURE, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stderr.split()[-1]) / 1024, time.monotonic() - started


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024
