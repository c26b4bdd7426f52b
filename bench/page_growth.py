"""A search with long curves on a running server: each half second all trials report a value."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Any

from bench.page_filling import BEGAN_MS
from bench.reading import submit
from bench.serving import USER, serve_home
from control_plane.access.tokens import issue_agent_token
from control_plane.actors import addresses
from control_plane.agents.metric_rows import FULL_REPORTS, Stream
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.api.agent_requests import ALLOCATIONS_MAX
from control_plane.metrics.columns import MetricReport, to_columns
from control_plane.metrics.segment import encode_segment
from control_plane.objects.store import model_code_key
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put
from detcloud.shared.http import Transport
from local_cluster.embedded_cluster import POOL, build_embedded_cluster
from local_cluster.home import HomeFolder

AGENT, GROUP = "growing", "training"
# Bytes of a line in a trial's report file.
LINE_BYTES = 100
PERIOD_SECONDS = 0.5
CONFIG = """
name: growing
entrypoint: python train.py
searcher: {name: random, metric: loss, max_length: {batches: 1000000}, max_trials: TRIALS,
  max_concurrent_trials: TRIALS}
hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
"""


@dataclass(frozen=True, slots=True)
class Growth:
    """A running search on a server."""

    url: str
    experiment: int


@contextmanager
def growing_trials(home: HomeFolder, trials: int, points: int) -> Iterator[Growth]:
    """Start trials with `points` points each that report until the block ends, and yield the
    search.
    """
    cluster = build_embedded_cluster(home, USER)
    services: Services = cluster.app.state.services
    slots = tuple((n, "cpu", f"cpu-{n}", "cpu") for n in range(trials))
    epoch = services.agents.enrol(AGENT, POOL, slots, "1")
    digest = "0" * 64
    services.objects.put(model_code_key(digest), b"")
    experiment = submit(services, CONFIG.replace("TRIALS", str(trials)), digest)
    started = _start_trials(services, epoch, trials)
    for trial_id in started:
        _write_points(services, trial_id, points)
    token = issue_agent_token(cluster.table, AGENT, epoch)
    cluster.table.close()
    with serve_home(home) as url:
        over = threading.Event()
        thread = threading.Thread(
            target=_report_on, args=(url, token, epoch, started, points, over)
        )
        thread.start()
        try:
            yield Growth(url, experiment)
        finally:
            over.set()
            thread.join()


def _start_trials(services: Services, epoch: int, trials: int) -> list[int]:
    known: list[str] = []
    while len(known) < trials:
        desired = services.agents.sync(AGENT, SyncRequest(epoch, tuple(known))).desired
        new = [one["allocation"] for one in desired if one["allocation"] not in known]
        if not new:
            raise RuntimeError(f"{len(known)} of {trials} trials started")
        known += new
    return [int(allocation.partition(".")[0]) for allocation in known]


def _write_points(services: Services, trial_id: int, points: int) -> None:
    """Write full rows of a trial's metric stream, like merged reports."""
    chance = Random(trial_id)
    reports = [
        MetricReport(LINE_BYTES * n, n, BEGAN_MS + 100 * n, {"loss": _loss(chance, n)})
        for n in range(1, points + 1)
    ]
    stream = Stream(GROUP, 1, "0")
    for first in range(0, points, FULL_REPORTS):
        of_row = reports[first : first + FULL_REPORTS]
        key = Key(addresses.trial(trial_id), stream.sort_key(of_row[-1].offset))
        services.table.commit([Put(key, 1, encode_segment(to_columns(of_row)), Expect.ABSENT)])


def _loss(chance: Random, step: int) -> float:
    return exp(-step / 4_000) + chance.gauss(0, 0.05)


def _report_on(
    url: str, token: str, epoch: int, trials: list[int], points: int, over: threading.Event
) -> None:
    chance = Random(0)
    api = Transport(url, token)
    known = [f"{trial_id}.1" for trial_id in trials]
    calls = itertools.count(1)
    for step in itertools.count(points + 1):
        for first in range(0, len(known), ALLOCATIONS_MAX):
            named = known[first : first + ALLOCATIONS_MAX]
            reports = [_line(allocation, step, _loss(chance, step)) for allocation in named]
            body = {"epoch": epoch, "call": next(calls), "known": known, "reports": reports}
            api.request("POST", f"/api/v1/agents/{AGENT}/sync", body)
        if over.wait(PERIOD_SECONDS):
            api.close()
            return


def _line(allocation: str, step: int, loss: float) -> dict[str, Any]:
    line = {
        "kind": "metrics",
        "group": GROUP,
        "steps_completed": step,
        "metrics": {"loss": loss},
        "time_ms": time.time_ns() // 1_000_000,
    }
    offset = LINE_BYTES * step
    return {"allocation": allocation, "writer": "0", "offset": offset, "line": line}
