"""Waits for the next directive after a validation: a scripted agent works through a search at a
cluster's API.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

from bench.figures import Row, at_most, row_without_target
from detcloud.shared.http import Transport

POOL = "static"
POOLS = f"""
resource_manager: {{default_compute_resource_pool: {POOL}, default_aux_resource_pool: {POOL}}}
resource_pools: [{{pool_name: {POOL}}}]
"""
SLOTS = 4
WARMING = 10
CODE = b"the bench's model code"
CODE_SHA256 = hashlib.sha256(CODE).hexdigest()
CONFIG = f"""
name: bench
entrypoint: python train.py
searcher: {{name: async_halving, metric: loss, max_length: {{batches: 16}}, num_rungs: 5,
  divisor: 2, max_trials: TRIALS, max_concurrent_trials: {SLOTS}}}
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
"""


def submit_experiment(url: str, token: str, trials: int) -> int:
    """Submit a search of `trials` trials with code from the bucket. Return the experiment's id."""
    asked = {"config": CONFIG.replace("TRIALS", str(trials)), "model_code": CODE_SHA256}
    created: int = Transport(url, token).request("POST", "/api/v1/experiments", asked)["id"]
    return created


def latency_rows(agent: "ValidationAgent", where: str, p50_max: int, p95_max: int) -> Iterator[Row]:
    """Yield rows of an agent's waits in milliseconds, without the first validations."""
    waits = agent.waits_ms[WARMING:] or agent.waits_ms
    ordered = sorted(waits)
    p95 = ordered[ceil(0.95 * len(ordered)) - 1]
    at_once = f"{len(waits)} validations, {agent.at_once} answered by the call that reported them"
    what = f"validation to the next directive, warm, {where}"
    yield at_most(f"{what}: p50", median(waits), p50_max, "ms", beside=at_once)
    yield at_most(f"{what}: p95", p95, p95_max, "ms", beside=f"largest {ordered[-1]:.0f} ms")
    steady = median(agent.steady_ms)
    yield row_without_target(f"a call without news, warm, {where}: p50", steady, "ms")


@dataclass
class _Run:
    """An allocation: the trial's progress and the offsets of the writers."""

    reached: int = 0
    ended: bool = False
    offsets: dict[str, int] = field(default_factory=dict)


class ValidationAgent:
    """An enrolled agent with trials that reach their length at once.

    `waits_ms`: times from the report of a validation to the answering directive.
    """

    def __init__(self, url: str, token: str) -> None:
        admin = Transport(url, token)
        asked = {"role": "join", "resource_pool": POOL}
        join = admin.request("POST", "/api/v1/tokens", asked)["token"]
        slots = [{"id": n, "type": "cuda", "uuid": f"GPU-{n}", "name": "GPU"} for n in range(SLOTS)]
        enrolment = {"name": "bench", "resource_pool": POOL, "slots": slots, "version": "1"}
        found = Transport(url, join).request("POST", "/api/v1/agents", enrolment)
        self.waits_ms: list[float] = []
        self.steady_ms: list[float] = []
        self.at_once = 0
        self._admin = admin
        self._client = Transport(url, found["token"])
        self._epoch: int = found["epoch"]
        self._runs: dict[str, _Run] = {}
        self._calls = 0

    def work(self, experiment: int) -> None:
        """Work until the experiment is completed. Raise RuntimeError if the experiment fails."""
        while True:
            began = time.perf_counter()
            desired = self._sync([])
            if not any(item["allocation"] not in self._runs for item in desired):
                self.steady_ms.append(1000 * (time.perf_counter() - began))
            for entry in desired:
                self._follow(entry)
            if not self._runs:
                path = f"/api/v1/experiments/{experiment}"
                state = self._admin.request("GET", path)["state"]
                if state == "COMPLETED":
                    return
                if state != "ACTIVE":
                    raise RuntimeError(f"the experiment is {state}")

    def _follow(self, entry: Mapping[str, Any]) -> None:
        name = entry["allocation"]
        if entry["state"] == "forget":
            self._runs.pop(name, None)
            return
        if entry["state"] != "run":
            return
        if name not in self._runs:
            self._runs[name] = _Run()
            self._say(name, "agent", {"kind": "container", "state": "RUNNING"})
        run, directives = self._runs[name], entry["directives"]
        while not run.ended and directives["length"] > run.reached:
            directives = self._report_validation(name, run, directives["length"])
        if not run.ended:
            run.ended = True
            reason = "completed" if directives["closed"] else "idle"
            self._say(name, "agent", {"kind": "exited", "reason": reason, "code": 0})

    def _report_validation(self, name: str, run: _Run, length: int) -> Mapping[str, Any]:
        """Report a validation at the length, wait for the next directives, and return the
        directives.
        """
        loss = int(name.partition(".")[0]) * 37 % 101 / length
        metrics = {"group": "validation", "steps_completed": length, "metrics": {"loss": loss}}
        lines = (
            {"kind": "metrics", **metrics},
            {"kind": "completed", "length": length, "metric": loss},
        )
        run.reached = length
        began = time.perf_counter()
        directives = self._directives(name, self._say(name, "0", *lines))
        self.at_once += _answers(directives, length)
        while not _answers(directives, length):
            directives = self._directives(name, self._sync([]))
        self.waits_ms.append(1000 * (time.perf_counter() - began))
        return directives

    def _directives(self, name: str, desired: list[dict[str, Any]]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = next(item for item in desired if item["allocation"] == name)
        return found["directives"]  # type: ignore[no-any-return]

    def _say(self, name: str, writer: str, *lines: Mapping[str, Any]) -> list[dict[str, Any]]:
        offsets = self._runs[name].offsets
        reports = []
        for line in lines:
            offsets[writer] = offsets.get(writer, 0) + 100
            about = {"allocation": name, "writer": writer, "offset": offsets[writer]}
            reports.append({**about, "line": line})
        return self._sync(reports)

    def _sync(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._calls += 1
        body = {"epoch": self._epoch, "call": self._calls, "known": sorted(self._runs)}
        path = "/api/v1/agents/bench/sync"
        answer = self._client.request("POST", path, {**body, "reports": reports}, retry=False)
        desired: list[dict[str, Any]] = answer["desired"]
        return desired


def _answers(directives: Mapping[str, Any], length: int) -> bool:
    """Return whether the search has decided about the reached length."""
    return bool(directives["answered"] >= length or directives["length"] > length)
