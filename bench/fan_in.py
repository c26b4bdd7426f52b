"""Fan-in: the cost of 200 trials with 1,000 reports a second for the writer, and the delay until
reports are visible.

Agent and server are separate processes. A single writer appends for all trials with the harness's
report file. A reader asks the API for the progress of a trial.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import (
    Row,
    Scale,
    at_least,
    at_most,
    progress,
    row_without_target,
    row_without_value,
)
from bench.machine import cpu_seconds
from bench.serving import USER, serve_home
from control_plane.access.principals import Principal, Role
from control_plane.objects.store import model_code_key
from control_plane.usecases.submission import (
    Submission,
    check_submission,
    submit_experiment,
)
from detcloud.shared.http import Transport
from detcloud.shared.report_file import ReportFile
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder

REPORTS_PER_SECOND = 1_000
SHARE_MIN_PERCENT = 99
P99_GROWTH_MAX = 1.05
DELAY_SECONDS_MAX = 5.0
START_SECONDS_MAX = 120.0
POLL_SECONDS = 0.1
CONFIG = """
name: fan-in
entrypoint: python train.py
searcher: {name: random, metric: loss, max_length: {batches: 1000000}, max_trials: TRIALS,
  max_concurrent_trials: TRIALS}
hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
"""


def fan_in(scale: Scale) -> Iterator[Row]:
    """Measure the writer alone, then next to an agent and a server that process the reports."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        home = HomeFolder(Path(folder) / "home")
        _submit_experiment(home, scale.fan_in_trials)
        with serve_home(home) as url, _agent(home, url, Path(folder), scale.fan_in_trials) as agent:
            with progress(f"{scale.fan_in_trials} trials"):
                trials = _wait_for_report_files(Path(folder) / "agent", scale.fan_in_trials)
            if trials is None:
                yield row_without_value("fan-in", "the trials did not start")
                return
            yield from _rows(Path(folder), url, home, agent.pid, trials, scale)


def _rows(
    folder: Path, url: str, home: HomeFolder, agent: int, trials: dict[int, Path], scale: Scale
) -> Iterator[Row]:
    idle_files = [folder / f"idle-{trial_id}.jsonl" for trial_id in trials]
    idle = _Writer(idle_files)
    with progress("reports that nobody reads"):
        idle.run(scale.fan_in_seconds / 4)
    writer = _Writer(list(trials.values()))
    watch = _Watch(url, home.load_or_create_secret("token"), next(iter(trials)), writer)
    before = cpu_seconds(agent)
    with progress("reports that are taken"), watch:
        writer.run(scale.fan_in_seconds)
        agent_share = 100 * (cpu_seconds(agent) - before) / writer.seconds
        watch.settle()
    # Measured before and after, so that both measurements see the same machine.
    with progress("reports that nobody reads"):
        idle.run(scale.fan_in_seconds / 4)
    reached = 100 * writer.count / writer.seconds / REPORTS_PER_SECOND
    yield at_least(
        f"reports of {len(trials)} trials, of {REPORTS_PER_SECOND:,}/s written",
        reached,
        SHARE_MIN_PERCENT,
        "%",
        beside=f"{writer.count:,} in {writer.seconds:.1f} s",
    )
    calm, loaded = _p99(idle.seconds_each), _p99(writer.seconds_each)
    yield at_most(
        "report call p99, of that with nobody reading",
        loaded / calm,
        P99_GROWTH_MAX,
        "x",
        beside=f"{loaded * 1e6:.0f} of {calm * 1e6:.0f} us; medians "
        f"{median(writer.seconds_each) * 1e6:.0f} and {median(idle.seconds_each) * 1e6:.0f} us",
    )
    if not watch.delays:
        yield row_without_value("delay until a report is seen", "none was seen")
        return
    beside = f"median {median(watch.delays):.2f} s, the last one seen {watch.settled:.2f} s after"
    yield at_most(
        "delay until a report is seen, p99",
        _p99(watch.delays),
        DELAY_SECONDS_MAX,
        "s",
        beside=beside,
    )
    yield row_without_target("agent's share of a core", agent_share, "%")


class _Writer:
    """A writer that appends reports to each file in turn, at a fixed pace."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [ReportFile(path) for path in files]
        self.seconds_each: list[float] = []
        self.count = 0
        self.seconds = 0.0
        # The time at which each step of the first file was written.
        self.written: dict[int, float] = {}

    def run(self, seconds: float) -> None:
        """Writes for so long."""
        started, before = time.monotonic(), self.count
        wanted = int(seconds * REPORTS_PER_SECOND)
        while (done := self.count - before) < wanted:
            ahead = done / REPORTS_PER_SECOND - (time.monotonic() - started)
            if ahead > 0:
                time.sleep(ahead)
            self._append()
        self.seconds = time.monotonic() - started

    def _append(self) -> None:
        place, steps = self.count % len(self._files), 1 + self.count // len(self._files)
        metrics = {"loss": 1 / steps, "accuracy": 0.1 * (steps % 10)}
        began = time.perf_counter()
        self._files[place].append(
            "metrics", group="training", steps_completed=steps, metrics=metrics
        )
        self.seconds_each.append(time.perf_counter() - began)
        self.count += 1
        if place == 0:
            self.written[steps] = time.monotonic()


@dataclass
class _Watch:
    """A thread that asks for the visible progress of the first trial. `delays`: seconds until each
    report is visible.
    """

    url: str
    token: str
    trial_id: int
    writer: _Writer
    delays: list[float] = field(default_factory=list)
    settled: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "_Watch":
        self._seen = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def settle(self) -> None:
        """Wait until all written reports are visible."""
        began = time.monotonic()
        while self._seen < max(self.writer.written) and time.monotonic() - began < 60:
            time.sleep(POLL_SECONDS / 2)
        self.settled = time.monotonic() - began

    def _run(self) -> None:
        client = Transport(self.url, self.token)
        path = f"/api/v1/trials/{self.trial_id}/metrics/names"
        while not self._over.wait(POLL_SECONDS):
            items = client.request("GET", path)["items"]
            now = time.monotonic()
            seen = max((item["last_steps"] for item in items), default=0)
            self.delays += [
                now - self.writer.written[steps]
                for steps in range(self._seen + 1, seen + 1)
                if steps in self.writer.written
            ]
            self._seen = max(seen, self._seen)
        client.close()


def _submit_experiment(home: HomeFolder, trials: int) -> None:
    cluster = build_embedded_cluster(home, USER)
    services = cluster.app.state.services
    code = empty_archive()
    digest = hashlib.sha256(code).hexdigest()
    services.objects.put(model_code_key(digest), code)
    asked = Submission(config=CONFIG.replace("TRIALS", str(trials)), model_code=digest)
    submitted = check_submission(services, asked, Principal(USER, Role.ADMIN))
    submit_experiment(services, submitted, USER, lambda reply: ())
    cluster.table.close()


def empty_archive() -> bytes:
    """Return an archive of model code whose program is empty."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("train.py"), io.BytesIO())
    return packed.getvalue()


@contextmanager
def _agent(
    home: HomeFolder, url: str, folder: Path, slots: int
) -> Iterator["subprocess.Popen[bytes]"]:
    work = folder / "agent"
    command = [sys.executable, "-m", "bench.idle_agent", url, str(home.folder / "agent.token")]
    process = subprocess.Popen([*command, str(work), str(slots)], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for_report_files(work: Path, count: int) -> dict[int, Path] | None:
    """Return each trial's report file when `count` trials run, or None after the time limit."""
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_at:
        running = [
            path
            for path in work.glob("allocations/*/agent/report-agent.jsonl")
            if '"RUNNING"' in path.read_text()
        ]
        if len(running) == count:
            allocations = [path.parents[1] for path in running]
            return {
                int(path.name.partition(".")[0]): path / "out/report-0.jsonl"
                for path in allocations
            }
        time.sleep(0.2)
    return None


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[ceil(0.99 * len(values)) - 1]
