"""The embedded cluster as a user starts the cluster: memory when idle, and time from `create` to
the first line of user code.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_most, progress, row_without_value
from detcloud.client.home import HOME_VARIABLE, Home
from detcloud.shared.processes import Process, list_descendants, pss_bytes, read_process

IDLE_MB_MAX = 150
FIRST_LINE_SECONDS_MAX = 2.0
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
CLI = (sys.executable, "-m", "detcloud.cli.main")
IDLE = "idle embedded cluster, all processes (PSS)"
ENTRYPOINTS = {"command": '["python", "first_line.py"]', "module:Class": "first_line:Trial"}


class ClusterFailed(Exception):
    """A failed command of the cluster, with the end of the command's output."""


def cluster(scale: Scale) -> Iterator[Row]:
    """Yield all rows of a single cluster: first idle, then used."""
    try:
        with embedded_cluster() as folder:
            yield _measure_idle(folder, scale)
            for kind, entrypoint in ENTRYPOINTS.items():
                yield _first_line(folder, kind, entrypoint, scale)
    except (ClusterFailed, subprocess.TimeoutExpired) as error:
        yield row_without_value("embedded cluster", error)


def process_name(process: Process) -> str:
    """The module or program of a command line."""
    words = process.command.split()
    named = words[words.index("-m") + 1] if "-m" in words[:-1] else words[0]
    return Path(named).name


@contextmanager
def embedded_cluster(*up: str) -> Iterator[Path]:
    """Run a cluster in a temporary folder's `home` and yield the folder. `up`: options of `detcloud
    up`.
    """
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with progress("detcloud up"):
            detcloud(folder, "up", *up)
        try:
            yield folder
        finally:
            with progress("detcloud down"):
                detcloud(folder, "down")


def _measure_idle(folder: Path, scale: Scale) -> Row:
    with progress(f"idle for {scale.idle_seconds:.0f} s"):
        time.sleep(scale.idle_seconds)
    record = Home(folder / "home").running_server()
    server = read_process(record.pid) if record else None
    if server is None:
        return row_without_value(IDLE, "no server runs")
    sizes = {process: pss_bytes(process.pid) for process in (server, *list_descendants(server.pid))}
    known = {process: size for process, size in sizes.items() if size is not None}
    if not known:
        return row_without_value(IDLE, "this system tells no process's share of memory")
    parts = ", ".join(
        f"{process_name(process)} {size / 1e6:.0f}" for process, size in known.items()
    )
    return at_most(IDLE, sum(known.values()) / 1e6, IDLE_MB_MAX, "MB", beside=parts)


def _first_line(folder: Path, kind: str, entrypoint: str, scale: Scale) -> Row:
    what = f"create to the first line of user code, {kind}"
    (model := folder / kind.partition(":")[0]).mkdir()
    mark = folder / "first_line.txt"
    (model / "first_line.py").write_text(
        f"import time\nwith open({str(mark)!r}, 'w') as file:\n    file.write(repr(time.time()))\n"
    )
    (config := folder / "config.yaml").write_text(
        f"name: first_line\nentrypoint: {entrypoint}\nmax_restarts: 0\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    seconds = []
    # The first run warms the cluster.
    for n in range(scale.create_runs + 1):
        with progress(f"{what}, run {n} of {scale.create_runs}"):
            seconds.append(_seconds_to_first_line(folder, config, model, mark))
    spread = f"{min(seconds[1:]):.2f} to {max(seconds[1:]):.2f} s"
    return at_most(what, median(seconds[1:]), FIRST_LINE_SECONDS_MAX, "s", beside=spread)


def _seconds_to_first_line(folder: Path, config: Path, model: Path, mark: Path) -> float:
    mark.unlink(missing_ok=True)
    started = time.time()
    created = json.loads(detcloud(folder, "create", str(config), str(model), "--json"))
    while time.time() - started < WAIT_SECONDS_MAX:
        if mark.exists() and (text := mark.read_text()):
            # The experiment must not run during the next measurement.
            detcloud(folder, "kill", str(created["id"]))
            detcloud(folder, "wait", str(created["id"]), succeeds=False)
            return float(text) - started
        time.sleep(POLL_SECONDS)
    logs = detcloud(folder, "logs", str(created["id"]))[-300:]
    raise ClusterFailed(f"no user code ran within {WAIT_SECONDS_MAX:.0f} s; {logs}")


def detcloud(
    folder: Path, *words: str, succeeds: bool = True, seconds: float | None = WAIT_SECONDS_MAX
) -> str:
    """Run `detcloud WORDS` and return the output. Raise ClusterFailed if the command fails and
    `succeeds` is set.
    """
    environment = {**os.environ, HOME_VARIABLE: str(folder / "home")}
    done = subprocess.run(
        [*CLI, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if succeeds and done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ClusterFailed(f"`detcloud {words[0]}` ended with {done.returncode}: {said}")
    return done.stdout
