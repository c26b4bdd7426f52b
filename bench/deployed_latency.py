"""How long a trial of a deployed cluster waits for its next directive after a validation: the stack
on the emulator, its functions warm, its stream delivered, and an agent that is a script.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_most, progress, row_without_target
from control_plane.objects.store import model_code_key
from detcloud.shared.http import Transport
from infra.aws.bundle import EXTRAS, TARGETS, build_archive
from tests.emulators.deployment import Stack, account, stack
from tests.emulators.ministack import ministack
from tests.emulators.stream import Pump
from tests.emulators.throttling import ThrottledTables

P50_MS_MAX, P95_MS_MAX = 70, 150
POOL = "static"
POOLS = f"""
resource_manager: {{default_compute_resource_pool: {POOL}, default_aux_resource_pool: {POOL}}}
resource_pools: [{{pool_name: {POOL}}}]
"""
SLOTS = 4
WARMING = 10
CODE = b"the bench's model code"
CONFIG = f"""
name: bench
entrypoint: python train.py
searcher: {{name: async_halving, metric: loss, max_length: {{batches: 16}}, num_rungs: 5,
  divisor: 2, max_trials: TRIALS, max_concurrent_trials: {SLOTS}}}
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
"""


def latency(scale: Scale) -> Iterator[Row]:
    """A search whose every result is answered by an agent's one call, or by the next."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with progress("the functions' archive"):
            # Nothing is suggested here.
            archives = dict.fromkeys(EXTRAS, build_archive(TARGETS["emulator"], folder))
        with (
            ministack(folder) as aws,
            account(aws, archives, folder) as company,
        ):
            # Nobody throttles the table here: functions ask it themselves.
            up = stack(replace(company, tables=ThrottledTables(aws.url)), "bench", POOLS)
            with progress("the configuration in force"):
                # The minute's tick is no part of it after that.
                up.invoke("tick", {})
            pump = Pump(aws, up.outputs["table"]).running()
            with pump, progress(f"a search of {scale.latency_trials} trials"):
                agent = _Agent(up)
                number = _submit_experiment(up, scale.latency_trials)
                agent.work(number)
    waits = agent.waits_ms[WARMING:] or agent.waits_ms
    ordered = sorted(waits)
    p95 = ordered[ceil(0.95 * len(ordered)) - 1]
    at_once = f"{len(waits)} validations, {agent.at_once} answered by the call that reported them"
    what = "validation to the next directive, warm, on the emulator"
    yield at_most(f"{what}: p50", median(waits), P50_MS_MAX, "ms", beside=at_once)
    yield at_most(f"{what}: p95", p95, P95_MS_MAX, "ms", beside=f"largest {ordered[-1]:.0f} ms")
    steady = median(agent.steady_ms)
    yield row_without_target("a call without news, warm, on the emulator: p50", steady, "ms")


@dataclass
class _Run:
    """An allocation: how far its trial is, and where its writers are."""

    reached: int = 0
    ended: bool = False
    offsets: dict[str, int] = field(default_factory=dict)


class _Agent:
    """Enrols, and has every trial reach its length at once. `waits_ms`: from each validation's
    report to the directive that answers it.
    """

    def __init__(self, up: Stack) -> None:
        admin = Transport(up.url, up.token)
        asked = {"role": "join", "resource_pool": POOL}
        token = admin.request("POST", "/api/v1/tokens", asked)["token"]
        slots = [{"id": n, "type": "cuda", "uuid": f"GPU-{n}", "name": "GPU"} for n in range(SLOTS)]
        enrolment = {"name": "bench", "resource_pool": POOL, "slots": slots, "version": "1"}
        found = Transport(up.url, token).request("POST", "/api/v1/agents", enrolment)
        self.waits_ms: list[float] = []
        self.steady_ms: list[float] = []
        self.at_once = 0
        self._admin = admin
        self._client = Transport(up.url, found["token"])
        self._epoch: int = found["epoch"]
        self._runs: dict[str, _Run] = {}
        self._calls = 0

    def work(self, experiment: int) -> None:
        """Until the experiment is over. Raises RuntimeError if it fails."""
        while True:
            began = time.perf_counter()
            desired = self._sync([])
            if not any(it["allocation"] not in self._runs for it in desired):
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
        """Reports a validation at the length, and waits for what comes after it."""
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
        found: Mapping[str, Any] = next(it for it in desired if it["allocation"] == name)
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
    """Whether the search has decided on what was reached."""
    return bool(directives["answered"] >= length or directives["length"] > length)


def _submit_experiment(up: Stack, trials: int) -> int:
    digest = hashlib.sha256(CODE).hexdigest()
    place = {"Bucket": up.outputs["objects"], "Key": str(model_code_key(digest))}
    up.aws.client("s3").put_object(**place, Body=CODE)
    asked = {"config": CONFIG.replace("TRIALS", str(trials)), "model_code": digest}
    created: int = Transport(up.url, up.token).request("POST", "/api/v1/experiments", asked)["id"]
    return created
