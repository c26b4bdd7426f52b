"""The time from an agent's start to the first step of a trial that resumes from a bucket.

The machine and the image are not included: the agent is a new process with an empty work directory,
and the trial is its process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.cluster import ClusterFailed, detcloud, embedded_cluster
from bench.figures import Row, Scale, at_most, progress, row_without_value
from detcloud.client.home import Home
from detcloud.shared.bucket_place import BucketPlace

FIRST_STEP_SECONDS_MAX = 15.0
WAIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.01
LABEL, MODEL = "resumed", "resumed_model.py"
# The moments of a resumed trial in order. The value names the part that ends at the moment.
PARTS = {
    "ready": "agent's imports",
    "enrolled": "enrolment",
    "assigned": "assignment",
    "launched": "code, template",
    "first": "process",
    "imported": "import of torch",
    "built": "model",
    "fetched": "download",
    "loaded": "load",
    "step": "first step",
}
CONFIG = """
name: resume
entrypoint: resumed_model:ResumedTrial
max_restarts: 0
hyperparameters: {global_batch_size: 1, mib: MIB, times: TIMES}
resources: {agent_label: LABEL}
checkpoint_storage: STORAGE
min_checkpoint_period: {batches: 100000}
scheduling_unit: 1
searcher: {name: single, metric: loss, max_length: {batches: 1000000}}
"""


def resume(scale: Scale) -> Iterator[Row]:
    """Yield the median of the time to the first step, with the medians of its parts."""
    # The emulator is imported only for this figure.
    from tests.emulators.seaweedfs import seaweedfs

    mib = scale.checkpoint_mib
    what = f"agent's start to the first step of a trial that resumes with {mib} MiB of state"
    with TemporaryDirectory(prefix="detcloud-bench-") as place:
        try:
            with seaweedfs(Path(place)) as server, embedded_cluster("--slots", "1") as folder:
                runs = list(_measure(folder, server.place(), mib, scale.resumed_runs))
        except (ClusterFailed, subprocess.TimeoutExpired) as error:
            yield row_without_value(what, error)
            return
    whole = [run["step"] - run["started"] for run in runs]
    yield at_most(what, median(whole), FIRST_STEP_SECONDS_MAX, "s", beside=_describe_parts(runs))


def _describe_parts(runs: list[dict[str, float]]) -> str:
    parts = {
        PARTS[after]: median(run[after] - run[before] for run in runs)
        for before, after in pairwise(("started", *PARTS))
    }
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())


def _measure(folder: Path, bucket: BucketPlace, mib: int, runs: int) -> Iterator[dict[str, float]]:
    """Yield the moments of each resumed run, in epoch seconds.

    The first run of the experiment is not measured, since it begins without a checkpoint.
    """
    times, experiment = folder / "times", ""
    for run in range(runs + 1):
        times.unlink(missing_ok=True)
        if experiment:
            detcloud(folder, "activate", experiment)
        with (
            progress(f"run {run} of {runs} with {mib} MiB"),
            _agent(folder, f"agent-{run}") as (work, started),
        ):
            if not experiment:
                _wait_for(folder, (work / "cluster.json").exists, "enrolment of an agent")
                experiment = _create(folder, _storage(bucket), mib, times)
            _wait_for(folder, times.exists, "step of the trial", experiment)
            if run:
                yield {"started": started, **_agent_moments(work), **_read_times(times)}
            detcloud(folder, "pause", experiment)
            has_paused = partial(_has_paused, folder, experiment)
            _wait_for(folder, has_paused, "pause", experiment)


def _storage(bucket: BucketPlace) -> str:
    fields = asdict(bucket)
    names = ("prefix", "endpoint_url", "access_key", "secret_key")
    return json.dumps(
        {"type": "s3", "bucket": bucket.name, **{name: fields[name] for name in names}}
    )


def _create(folder: Path, storage: str, mib: int, times: Path) -> str:
    """Submit the experiment, and return its id."""
    (model := folder / "model").mkdir()
    (model / MODEL).write_text(Path(__file__).with_name(MODEL).read_text())
    text = CONFIG
    values = {"MIB": mib, "TIMES": times, "LABEL": LABEL, "STORAGE": storage}
    for name, value in values.items():
        text = text.replace(name, str(value), 1)
    (config := folder / "config.yaml").write_text(text)
    created = json.loads(detcloud(folder, "create", str(config), str(model), "--json"))
    return str(created["id"])


@contextmanager
def _agent(folder: Path, name: str) -> Iterator[tuple[Path, float]]:
    """Run a new agent. Yield the work directory and the time of the start, in seconds since 1970.

    Disable the agent afterwards, so that no trial is assigned to an ended agent.
    """
    home = Home(folder / "home")
    record = home.running_server()
    if record is None:
        raise ClusterFailed("no server runs")
    work = folder / name
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", record.url, "--name", name]
    command += ["--pool", "default", "--token-file", str(home.folder / "agent.token")]
    command += ["--work-dir", str(work), "--slots", "1", "--label", LABEL]
    with (folder / f"{name}.log").open("wb") as log:
        started = time.time()
        process = subprocess.Popen(command, stderr=log, env=os.environ)
    try:
        yield work, started
    finally:
        detcloud(folder, "agent", "disable", name, succeeds=False)
        process.terminate()
        process.wait(timeout=WAIT_SECONDS_MAX)


def _agent_moments(work: Path) -> dict[str, float]:
    """Return the moments of an agent with a single allocation, from the times of its files."""
    (allocation,) = (work / "allocations").iterdir()
    files = {
        "ready": work / "agent.lock",
        "enrolled": work / "cluster.json",
        "assigned": allocation / "in" / "spec.json",
        "launched": allocation / "agent" / "launch.json",
    }
    return {name: path.stat().st_mtime for name, path in files.items()}


def _read_times(times: Path) -> dict[str, float]:
    pairs = (line.split() for line in times.read_text().splitlines())
    return {name: float(moment) for name, moment in pairs}


def _has_paused(folder: Path, experiment: str) -> bool:
    trials = json.loads(detcloud(folder, "trial", "list", experiment, "--json"))
    items: list[Mapping[str, Any]] = trials if isinstance(trials, list) else trials["items"]
    return not any(item["allocation"] for item in items)


def _wait_for(folder: Path, happens: Callable[[], bool], what: str, experiment: str = "") -> None:
    """Wait until `happens` returns True. Raise ClusterFailed with the trial's log otherwise."""
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while not happens():
        if time.monotonic() > give_up_at:
            logs = detcloud(folder, "logs", experiment)[-500:] if experiment else ""
            raise ClusterFailed(f"no {what} in {WAIT_SECONDS_MAX:.0f} s; {logs}")
        time.sleep(POLL_SECONDS)
