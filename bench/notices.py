"""A notice on a machine of a trial on two machines.

Measured are the times until the directive is known in all processes, and until the common stopping
step is announced.
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

from bench.cluster import ClusterFailed, detcloud, embedded_cluster
from bench.figures import Row, Scale, at_most, progress, row_without_value
from detcloud.client.home import Home

DIRECTIVE_SECONDS_MAX, STEP_SECONDS_MAX = 1.0, 2.0
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
AGENT = "second"
# Each process checks like a training with short steps, and records when the notice and the stop
# were known.
SCRIPT = """
import sys, time
from pathlib import Path
from detcloud import core

folder = Path(sys.argv[1])
with core.init() as context:
    ranks = context.distributed
    (folder / f"ready-{ranks.rank}").touch()
    heard = None
    while not context.preempt.should_preempt():
        if heard is None and context.preempt.is_requested():
            heard = time.time()
        time.sleep(0.001)
    stops = time.time()
    (folder / f"new-{ranks.rank}").write_text(f"{heard or stops} {stops}")
    (folder / f"new-{ranks.rank}").rename(folder / f"heard-{ranks.rank}")
"""


def notices(scale: Scale) -> Iterator[Row]:
    """Yield medians of the slower process over all runs, on a real cluster with two agents."""
    try:
        with embedded_cluster("--slots", "1") as folder:
            heard, stops = zip(
                *(_measure(folder, run) for run in range(scale.gang_notices)), strict=True
            )
    except (ClusterFailed, subprocess.TimeoutExpired) as error:
        yield row_without_value("notice to the agreed stop", error)
        return
    slowest = f"slowest {max(heard):.2f} s"
    what = "notice on a machine that is not the chief's to its directive in every process"
    yield at_most(what, median(heard), DIRECTIVE_SECONDS_MAX, "s", beside=slowest)
    what = "the same to the agreed stop step in every process"
    yield at_most(what, median(stops), STEP_SECONDS_MAX, "s", beside=f"slowest {max(stops):.2f} s")


def _measure(folder: Path, run: int) -> tuple[float, float]:
    """Return the seconds from the notice until the last process knows the notice and the stopping
    step.
    """
    place = folder / f"run-{run}"
    (model := place / "model").mkdir(parents=True)
    (model / "notice.py").write_text(SCRIPT)
    launcher = "python3 -m detcloud.launch.torch_distributed"
    (config := place / "config.yaml").write_text(
        f"name: notice\nentrypoint: {launcher} notice.py {place}\nmax_restarts: 0\n"
        "resources: {slots_per_trial: 2}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    )
    with progress(f"notice, run {run + 1}"), _second_agent(folder, f"{AGENT}-{run}") as work:
        created = json.loads(detcloud(folder, "create", str(config), str(model), "--json"))
        _wait_for(place, "ready")
        # Agents check for notices twice a second. The delay makes runs meet different moments of
        # this period.
        time.sleep(0.13 * run)
        began = time.time()
        notice = {"deadline_ms": int((began + 120) * 1000), "reason": "bench"}
        (new := work / "notice.new").write_text(json.dumps(notice))
        new.rename(work / "preemption-notice.json")
        moments = [path.read_text().split() for path in _wait_for(place, "heard")]
        detcloud(folder, "kill", str(created["id"]))
        detcloud(folder, "wait", str(created["id"]), succeeds=False)
    heard, stops = (max(map(float, column)) for column in zip(*moments, strict=True))
    return heard - began, stops - began


def _wait_for(place: Path, what: str) -> list[Path]:
    """Return the files `what`-RANK of both processes when both exist."""
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while len(found := sorted(place.glob(f"{what}-*"))) < 2:
        if time.monotonic() > give_up_at:
            raise ClusterFailed(f"a trial of two processes was not {what} in time")
        time.sleep(POLL_SECONDS)
    return found


@contextmanager
def _second_agent(folder: Path, name: str) -> Iterator[Path]:
    """Run an agent in addition to the cluster's own, and yield the agent's work directory."""
    home = Home(folder / "home")
    record = home.running_server()
    if record is None:
        raise ClusterFailed("no server runs")
    work = folder / name
    command = [sys.executable, "-m", "detcloud.agent", "--name", name, "--slots", "1"]
    command += ["--url", record.url, "--pool", "default", "--work-dir", str(work)]
    command += ["--token-file", str(home.folder / "agent.token"), "--stop-seconds", "1"]
    command += ["--address", "127.0.0.2"]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=os.environ)
    try:
        yield work
    finally:
        process.terminate()
        process.wait(timeout=WAIT_SECONDS_MAX)
