"""Reading with much data: lists, descriptions and charts over HTTP for ten parallel clients.

The table is filled through the agents' call: 10,000 trials with a million metric values together,
and a trial with a million values.
"""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from math import ceil, exp
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.filling import services_to_fill
from bench.serving import USER, serve_home
from control_plane.access.principals import Principal, Role
from control_plane.agents.reports import Report
from control_plane.agents.service import AgentService
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.objects.store import model_code_key
from control_plane.services import Services
from control_plane.usecases.submission import (
    Submission,
    check_submission,
    submit_experiment,
)
from detcloud.shared.archive import pack
from local_cluster.embedded_cluster import POOL, build_embedded_cluster
from local_cluster.home import HomeFolder

CLIENTS = 10
P95_MS_MAX = 100
ANSWER_KB_MAX = 200
NAMES = 10
SLOTS = 64
# Reports per call of the long trial, as many as some minutes of training produce.
REPORTS_PER_CALL = 100
# Files of the model code, which the page shows as a tree with contents.
CODE_FILES = 2_000
CODE_FILE_BYTES = 4_000
# Rank and period of profiling reports in the long trial.
PROFILED_RANK = 3
PROFILED_EVERY = 10
# Trials per request of the page's plane of hyperparameters.
PLANE_PAGE = 250
# A halving with a single rung trains each trial once, like a random search, and has rungs to show.
CONFIG = """
name: reading
entrypoint: python train.py
searcher: {name: async_halving, num_rungs: 1, metric: loss, max_length: {batches: 1000},
  max_trials: TRIALS, max_concurrent_trials: 64}
hyperparameters:
  lr: {type: log, minval: -5, maxval: -1, base: 10}
  width: {type: int, minval: 8, maxval: 512}
reproducibility: {experiment_seed: 7}
"""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """The written table.

    `experiment`: the experiment with many trials. `trials`: the ids of these trials. `long_trial`:
    the id of the long trial. `code`: the digest of the model code.
    """

    experiment: int
    trials: tuple[int, ...]
    long_trial: int
    code: str


def reading(scale: Scale) -> Iterator[Row]:
    """Yield all rows for a single table."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        home = HomeFolder(Path(folder))
        with progress(f"{scale.reading_trials:,} trials, {scale.reading_values:,} values twice"):
            filled = fill(home, scale.reading_trials, scale.reading_values)
        with serve_home(home) as url:
            token = home.load_or_create_secret("token")
            yield from _measure_paths("many trials", url, token, _many(filled), scale)
            yield from _measure_paths("one long trial", url, token, _long(filled), scale)


def fill(home: HomeFolder, trials: int, values: int) -> FilledTable:
    """Run an experiment of `trials` trials with `values` metric values in total, then a single
    trial with as many values.
    """
    # Configures the pool, like the first start of a cluster.
    build_embedded_cluster(home, USER).table.close()
    with services_to_fill(home) as services:
        code = _store_code(services)
        agent = ScriptedAgent(services.agents, "reading")
        many = submit(services, CONFIG.replace("TRIALS", str(trials)), code)
        ran = agent.work(partial(_lines, values=values // trials))
        one = submit(services, CONFIG.replace("TRIALS", "1"), code)
        [long_trial] = agent.work(partial(_lines, values=values))
    assert one == many + 1
    return FilledTable(many, tuple(ran), long_trial, code)


MakeLines = Callable[[int, Mapping[str, Any]], Iterator[Report]]
"""Makes the reports of a trial, given its id and directives."""


class ScriptedAgent:
    """An agent that runs all assigned trials through the real sync call."""

    def __init__(self, service: AgentService, name: str) -> None:
        self._service = service
        self._name = name
        slots = tuple((n, "cpu", f"cpu-{n}", "cpu") for n in range(SLOTS))
        self._epoch = service.enrol(name, POOL, slots, "1")
        self._known: dict[str, None] = {}

    def work(self, make_lines: MakeLines) -> list[int]:
        """Run trials until no trial is left, and return the trials' ids."""
        ran: list[int] = []
        pending: list[_PendingReports] = []
        while True:
            reports = tuple(report for life in pending for report in life.next_batch())
            pending = [life for life in pending if not life.is_over]
            request = SyncRequest(self._epoch, tuple(self._known), reports)
            for entry in self._service.sync(self._name, request).desired:
                allocation = entry["allocation"]
                if entry["state"] == "forget":
                    del self._known[allocation]
                elif entry["state"] == "run" and allocation not in self._known:
                    self._known[allocation] = None
                    trial_id = int(allocation.partition(".")[0])
                    ran.append(trial_id)
                    lines = make_lines(trial_id, entry["directives"])
                    pending.append(_PendingReports(lines))
            if not self._known:
                return ran


class _PendingReports:
    """The unsent reports of a trial."""

    def __init__(self, lines: Iterator[Report]) -> None:
        self._lines = lines
        self.is_over = False

    def next_batch(self) -> tuple[Report, ...]:
        """The reports of the next call."""
        taken = tuple(itertools.islice(self._lines, REPORTS_PER_CALL))
        self.is_over = len(taken) < REPORTS_PER_CALL
        return taken


def _lines(trial_id: int, directives: Mapping[str, Any], values: int) -> Iterator[Report]:
    """Yield the reports of a trial: a validation for every nine training reports, with NAMES values
    each.
    """
    chance = random.Random(trial_id)
    reports, length = max(1, values // NAMES), directives["length"]
    yield Report(trial_id, 1, "agent", 1, {"kind": "container", "state": "RUNNING"})
    loss = 0.0
    for n in range(1, reports + 1):
        done = n / reports
        loss = exp(-3 * done) + chance.gauss(0, 0.05)
        line = {
            "kind": "metrics",
            "group": "training" if n % 10 else "validation",
            "steps_completed": max(1, int(length * done)) if reports < length else n,
            "metrics": {"loss": loss, **{f"m{k}": chance.random() for k in range(1, NAMES)}},
            "time_ms": 1_700_000_000_000 + 100 * n,
        }
        yield Report(trial_id, 1, "0", 200 * n, line)
        # Trials with few values have no profiling reports.
        if reports > length and n % PROFILED_EVERY == 0:
            yield Report(trial_id, 1, str(PROFILED_RANK), 200 * n, _measured_line(n, chance))
    done_line = {"kind": "completed", "length": length, "metric": loss}
    yield Report(trial_id, 1, "0", 200 * reports + 100, done_line)
    reason = "completed" if directives["closed"] else "idle"
    yield Report(trial_id, 1, "agent", 2, {"kind": "exited", "reason": reason})


def _measured_line(n: int, chance: random.Random) -> dict[str, Any]:
    metrics = {f"gpu{k}_util": 100 * chance.random() for k in range(NAMES)}
    time_ms = 1_700_000_000_000 + 100 * n
    fields = {"group": "gpu", "steps_completed": n, "metrics": metrics, "time_ms": time_ms}
    return {"kind": "rank_metrics", **fields}


def _store_code(services: Services) -> str:
    """Store model code of many files with the program of `CONFIG`, and return the digest."""
    with TemporaryDirectory(prefix="detcloud-bench-") as name:
        (Path(name) / "train.py").touch()
        for n in range(CODE_FILES):
            file = Path(name) / f"package{n % 20}" / f"module{n}.py"
            file.parent.mkdir(exist_ok=True)
            line = f"value_{n} = {n}\n"
            file.write_text(line * (CODE_FILE_BYTES // len(line)))
        with pack(Path(name)) as archive:
            services.objects.put(model_code_key(archive.sha256), archive.path.read_bytes())
            return archive.sha256


def submit(services: Services, config: str, code: str) -> int:
    """Submit an experiment with a configuration and code, and return the experiment's id."""
    caller = Principal(USER, Role.ADMIN)
    asked = check_submission(services, Submission(config=config, model_code=code), caller)
    created = submit_experiment(services, asked, USER, lambda reply: ())
    assert isinstance(created, int)
    return created


Paths = Mapping[str, Callable[[random.Random], str]]


def _many(filled: FilledTable) -> Paths:
    def trial(chance: random.Random) -> int:
        return chance.choice(filled.trials)

    experiment = f"/experiments/{filled.experiment}"
    return {
        "list experiments": lambda chance: "/experiments",
        "list trials": lambda chance: f"{experiment}/trials",
        "describe experiment": lambda chance: experiment,
        "describe trial": lambda chance: f"/trials/{trial(chance)}",
        "list metrics": lambda chance: f"/trials/{trial(chance)}/metrics",
        "names": lambda chance: f"/trials/{trial(chance)}/metrics/names",
        "chart trial": lambda chance: f"/trials/{trial(chance)}/metrics/series?group=training",
        "chart experiment": lambda chance: f"{experiment}/metrics",
        "rungs": lambda chance: f"{experiment}/rungs",
        "plane of hyperparameters": lambda chance: f"{experiment}/trials?limit={PLANE_PAGE}",
        "code tree": lambda chance: f"{experiment}/code?limit=500",
        "code text": lambda chance: f"{experiment}/code/file?path={_code_path(chance)}",
    }


def _long(filled: FilledTable) -> Paths:
    trial = f"/trials/{filled.long_trial}"
    return {
        "chart trial": lambda chance: f"{trial}/metrics/series?group=training",
        "chart one name": lambda chance: f"{trial}/metrics/series?group=training&name=loss",
        "describe trial": lambda chance: trial,
        "list metrics": lambda chance: f"{trial}/metrics",
        "names": lambda chance: f"{trial}/metrics/names",
        "ranks": lambda chance: f"{trial}/metrics/ranks",
        "profiler": lambda chance: f"{trial}/metrics/series?group=gpu&rank={PROFILED_RANK}",
    }


def _code_path(chance: random.Random) -> str:
    n = chance.randrange(CODE_FILES)
    return f"package{n % 20}/module{n}.py"


@dataclass(frozen=True, slots=True)
class _Answer:
    milliseconds: float
    size: int


def _measure_paths(what: str, url: str, token: str, paths: Paths, scale: Scale) -> Iterator[Row]:
    """Send each kind of query in turn from all clients for some seconds. Yield times and sizes."""
    cold = {kind: _ask(url, token, paths[kind](random.Random(0))) for kind in paths}
    with progress(f"{what}, {CLIENTS} clients"):
        until = time.monotonic() + scale.reading_seconds
        with ThreadPoolExecutor(CLIENTS) as pool:
            found = list(
                pool.map(lambda seed: _client(url, token, paths, seed, until), range(CLIENTS))
            )
    for kind in paths:
        answers = [answer for one in found for answer in one[kind]]
        times = sorted(answer.milliseconds for answer in answers)
        p95 = times[ceil(0.95 * len(times)) - 1]
        kilobytes = max(answer.size for answer in answers) / 1000
        beside = f"median {median(times):.0f} ms, first {cold[kind].milliseconds:.0f} ms"
        yield at_most(f"{what}: {kind}, p95", p95, P95_MS_MAX, "ms", beside=beside)
        yield at_most(f"{what}: {kind}, largest answer", kilobytes, ANSWER_KB_MAX, "KB")
    rate = sum(len(one[kind]) for one in found for kind in paths) / scale.reading_seconds
    yield row_without_target(f"{what}: answers", rate, "/s")


def _client(
    url: str, token: str, paths: Paths, seed: int, until: float
) -> dict[str, list[_Answer]]:
    chance = random.Random(seed)
    found: dict[str, list[_Answer]] = {kind: [] for kind in paths}
    connection = HTTPConnection(urlsplit(url).netloc)
    kinds = list(paths)
    chance.shuffle(kinds)
    for kind in itertools.cycle(kinds):
        if time.monotonic() > until and all(found.values()):
            connection.close()
            return found
        found[kind].append(answer(connection, token, paths[kind](chance)))
    raise AssertionError("there are no kinds")


def _ask(url: str, token: str, path: str) -> _Answer:
    connection = HTTPConnection(urlsplit(url).netloc)
    try:
        return answer(connection, token, path)
    finally:
        connection.close()


def answer(connection: HTTPConnection, token: str, path: str) -> _Answer:
    started = time.perf_counter()
    connection.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {json.loads(content)['error']['message']}")
    return _Answer((time.perf_counter() - started) * 1000, len(content))
