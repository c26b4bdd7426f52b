"""A simulated agent that sends syncs, reports and logs of a test over HTTP."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp

from control_plane.access.principals import Role
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

SLOTS = [{"id": n, "type": "cpu", "uuid": f"cpu-{n}", "name": "CPU"} for n in range(2)]

CONFIG = """
name: digits
entrypoint: python train.py
searcher: {name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}
hyperparameters:
  x: {type: double, minval: 0, maxval: 1}
reproducibility: {experiment_seed: 7}
"""


class AppAgent:
    """An enrolled agent of an application, without the rest of the application's cluster.

    Attributes:
        offsets: the reported bytes by allocation and writer.
    """

    def __init__(self, app: ASGIApp, name: str = "node", slots: int = 2) -> None:
        self.app = app
        self.name = name
        answer = enrol_at(app, name, slots)
        assert answer.status == 200, answer.body
        self.token: str = answer.json["token"]
        self.epoch: int = answer.json["epoch"]
        self.seen = 0
        self.known: list[str] = []
        self.offsets: dict[tuple[str, str], int] = {}

    def sync(self, **fields: Any) -> Answer:
        body = {"epoch": self.epoch, "seen": self.seen, "known": self.known, **fields}
        path = f"{V1}/agents/{self.name}/sync"
        answer = call(self.app, "POST", path, token=self.token, content=body)
        if answer.status == 200:
            self.seen = answer.json["revision"]
        return answer

    def take_work(self) -> list[str]:
        """Sync, store the allocations to run in `known`, and return `known`."""
        entries = self.sync().json["desired"]
        self.known = [entry["allocation"] for entry in entries if entry["state"] == "run"]
        return self.known

    def report(self, allocation: str, *lines: dict[str, Any], writer: str = "0") -> Answer:
        return self.sync(reports=self.entries(allocation, *lines, writer=writer))

    def entries(
        self, allocation: str, *lines: dict[str, Any], writer: str = "0"
    ) -> list[dict[str, Any]]:
        """Return further lines of a writer as `reports` of a sync; advance the writer's offset."""
        entries = []
        for line in lines:
            offset = self.offsets.get((allocation, writer), 0) + len(json.dumps(line)) + 1
            self.offsets[allocation, writer] = offset
            entry = {"allocation": allocation, "writer": writer, "offset": offset, "line": line}
            entries.append(entry)
        return entries

    def log(self, allocation: str, offset: int, text: str) -> Answer:
        return self.sync(logs=[{"allocation": allocation, "offset": offset, "text": text}])

    def finish(self, allocation: str) -> None:
        """Report a completed trial of length 10 and the exit of the process with code 0."""
        done = {"kind": "completed", "length": 10, "metric": 0.5}
        self.report(allocation, done)
        exited = {"kind": "exited", "reason": "completed", "code": 0}
        self.report(allocation, exited, writer="agent")


class Agent(AppAgent):
    """An enrolled agent of a test's cluster."""

    def __init__(self, cluster: Cluster, name: str = "node", slots: int = 2) -> None:
        super().__init__(cluster.app, name, slots)
        self.cluster = cluster


def enrol(cluster: Cluster, name: str, slots: int = 2, pool: str = "default") -> Answer:
    return enrol_at(cluster.app, name, slots, pool)


def enrol_at(app: ASGIApp, name: str, slots: int = 2, pool: str = "default") -> Answer:
    """Send the enrolment of an agent with a join token, and return the answer."""
    body = {"name": name, "resource_pool": pool, "slots": SLOTS[:slots], "version": "1"}
    return call(app, "POST", f"{V1}/agents", token=TOKENS[Role.JOIN], content=body)


def checkpoint_line(
    trial_id: int, epoch: int, steps: int, experiment_id: int = 1
) -> dict[str, Any]:
    """Return the report of a complete checkpoint at `steps` batches; the UUID has the numbers."""
    uuid = f"0123abcd-0000-4000-8000-{trial_id:04d}{epoch:02d}{steps:06d}"
    return {
        "kind": "checkpoint",
        "uuid": uuid,
        "path": f"{experiment_id}/{trial_id}/{epoch}/{uuid}",
        "steps_completed": steps,
        "manifest_sha256": "a" * 64,
        "size_bytes": 8,
        "files": 1,
        "metadata": {},
        "metric": None,
    }


def metrics(steps: int, group: str = "training", **values: Any) -> dict[str, Any]:
    return {
        "kind": "metrics",
        "group": group,
        "steps_completed": steps,
        "metrics": values,
        "time_ms": 1000 + steps,
    }
