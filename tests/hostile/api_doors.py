"""Every body that the API accepts, from the OpenAPI description, and a matching cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from control_plane.access.principals import Role
from tests.hostile.door import Door
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_owners import DELIVERY, WEBHOOK
from tests.unit.queries.test_queries_trials import checkpoint
from tests.unit.searchers.custom_search import create_operation

CUSTOM = CONFIG.replace(
    "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}",
    "{name: custom, metric: loss, unit: batches, population: 9}",
)
DEVICE = {"id": 0, "type": "cpu", "uuid": "cpu-0", "name": "CPU"}
RECORDED, BEGUN = "0000000a-0000-4000-8000-000000000001", "0000000b-0000-4000-8000-000000000002"
AGENT_USER = {"kind": "user", "name": "a", "uid": 1, "gid": 1, "user": "a", "group": "a"}
SHA256, MD5 = "0" * 64, "0" * 32
MARK = "@place of the value@"

Place = tuple[str | int, ...]

HOOK: dict[str, Any] = {
    "name": "h",
    "token": None,
    "url": "https://example.com/x",
    "format": "json",
    "mode": "WORKSPACE",
    "triggers": [
        {
            "type": "METRIC_THRESHOLD_EXCEEDED",
            "states": [],
            "levels": [],
            "metric": "loss",
            "above": None,
            "below": 0.5,
            "pattern": "",
        }
    ],
    "workspace": None,
    "project": "p",
    "labels": ["l"],
    "filtered_user": None,
    "experiments": [1],
}
"""The body of a webhook with all fields."""
DOORS: Mapping[str, Door] = {
    "POST /model-code": Door(Role.USER, {"sha256": SHA256, "size": 1}, "/model-code"),
    "POST /experiments": Door(
        Role.USER,
        {
            "config": CONFIG,
            "model_code": SHA256,
            "template": None,
            "overrides": ["name=x"],
            "validate_only": True,
            "kind": "EXPERIMENT",
        },
        "/experiments",
    ),
    "PATCH /experiments/{}": Door(
        Role.USER,
        {
            "name": "n",
            "description": "d",
            "labels": ["l"],
            "max_slots": 1,
            "weight": 1.0,
            "priority": 42,
            "max_cost": 1.0,
            "save_trial_best": 1,
            "workspace": "w",
            "project": "p",
            "metadata": {"a": 1},
            "revision": None,
        },
        "/experiments/1",
        ("metadata",),
    ),
    "POST /experiments/{}/continue": Door(
        Role.USER, {"overrides": ["name=x"], "validate_only": True}, "/experiments/1/continue"
    ),
    "POST /experiments/{}/searcher-operations": Door(
        Role.USER,
        {"post": 1, "acknowledged": 0, "operations": [create_operation(7, {"lr": 0.1})]},
        "/experiments/2/searcher-operations",
        ("operations",),
    ),
    "POST /search-previews": Door(
        Role.USER, {"config": CONFIG, "overrides": ["name=x"], "slots": 2}, "/search-previews"
    ),
    "PATCH /trials/{}": Door(
        Role.USER, {"metadata": {"a": 1}, "revision": None}, "/trials/1", ("metadata",)
    ),
    "PATCH /checkpoints/{}": Door(
        Role.USER,
        {"metadata": {"a": 1}, "revision": None},
        f"/checkpoints/{RECORDED}",
        ("metadata",),
    ),
    "POST /checkpoint-uploads": Door(
        Role.USER, {"trial_id": 1, "uuid": BEGUN}, "/checkpoint-uploads"
    ),
    "POST /checkpoint-uploads/{}/{}/files": Door(
        Role.USER,
        {"files": [{"path": "a.bin", "size": 1, "sha256": SHA256, "md5": MD5}]},
        f"/checkpoint-uploads/1/{BEGUN}/files",
    ),
    "POST /checkpoint-uploads/{}/{}/parts": Door(
        Role.USER,
        {"path": "b.bin", "size": 100 << 20, "md5": MD5, "parts": [{"number": 1, "md5": MD5}]},
        f"/checkpoint-uploads/1/{BEGUN}/parts",
    ),
    "POST /checkpoint-uploads/{}/{}/parts/join": Door(
        Role.USER,
        {"path": "b.bin", "size": 100 << 20, "md5": MD5},
        f"/checkpoint-uploads/1/{BEGUN}/parts/join",
    ),
    "POST /checkpoint-uploads/{}/{}/complete": Door(
        Role.USER, {"manifest_sha256": SHA256}, f"/checkpoint-uploads/1/{BEGUN}/complete"
    ),
    "POST /agents": Door(
        Role.JOIN,
        {
            "name": "other",
            "resource_pool": "default",
            "slots": [DEVICE],
            "version": "1",
            "label": "",
            "address": "127.0.0.1",
            "runtime": "process",
        },
        "/agents",
    ),
    "POST /agents/{}/disable": Door(Role.ADMIN, {"drain": False}, "/agents/idle/disable"),
    "POST /agents/{}/sync": Door(
        Role.AGENT,
        {
            "epoch": 1,
            "seen": 0,
            "call": 1,
            "wait_ms": 0,
            "known": ["1.1"],
            "reports": [
                {"allocation": "1.1", "writer": "9", "offset": 1, "line": {"kind": "unknown"}}
            ],
            "logs": [{"allocation": "1.1", "offset": 0, "text": "t", "marks": [[0, 1]]}],
            "more": False,
            "incarnation": "",
            "notice": {"deadline_ms": None},
        },
        "/agents/idle/sync",
    ),
    "POST /agents/{}/storage-credentials": Door(
        Role.AGENT, {"allocation": "1.1"}, "/agents/idle/storage-credentials"
    ),
    "POST /agents/{}/data-credentials": Door(
        Role.AGENT, {"allocation": "1.1"}, "/agents/idle/data-credentials"
    ),
    "POST /agents/{}/registry-credentials": Door(
        Role.AGENT, {"allocation": "1.1", "image": "i"}, "/agents/idle/registry-credentials"
    ),
    "POST /agents/{}/early-image-credentials": Door(
        Role.AGENT, {"image": "i"}, "/agents/idle/early-image-credentials"
    ),
    "POST /agents/{}/package-archives": Door(
        Role.AGENT,
        {"allocation": "1.1", "kind": "hook", "key": SHA256, "size": 1, "sha256": SHA256},
        "/agents/idle/package-archives",
    ),
    "PUT /instances/{}/identity": Door(
        Role.JOIN,
        {"resource_pool": "default", "token_sha256": SHA256, "signature": "s"},
        "/instances/i-1/identity",
    ),
    "PUT /instances/{}/boot-report": Door(
        Role.JOIN,
        {"resource_pool": "default", "report": "r", "signature": "s"},
        "/instances/i-1/boot-report",
    ),
    "POST /instances/{}/agent-code": Door(
        Role.JOIN, {"resource_pool": "default", "signature": "s"}, "/instances/i-1/agent-code"
    ),
    "PUT /resource-pools/{}": Door(
        Role.ADMIN,
        {"config": "description: x", "overrides": ["description=y"]},
        "/resource-pools/default",
    ),
    "PUT /cluster/configuration": Door(
        Role.ADMIN,
        {"config": "checkpoint_deletions_per_second: 1000", "dry_run": False},
        "/cluster/configuration",
    ),
    "PATCH /jobs": Door(Role.ADMIN, {"operations": [{"job_id": "{job}", "weight": 1.0}]}, "/jobs"),
    "PATCH /jobs/{}": Door(Role.ADMIN, {"priority": 42}, "/jobs/{job}"),
    "POST /models": Door(
        Role.USER,
        {
            "name": "other",
            "workspace": "w",
            "description": "d",
            "notes": "n",
            "labels": ["l"],
            "metadata": {"a": 1},
        },
        "/models",
        ("metadata",),
    ),
    "PATCH /models/{}": Door(
        Role.USER,
        {
            "workspace": "w",
            "description": "d",
            "notes": "n",
            "labels": ["l"],
            "metadata": {"a": 1},
            "archived": False,
            "revision": None,
        },
        "/models/m",
        ("metadata",),
    ),
    "POST /models/{}/versions": Door(
        Role.USER,
        {
            "checkpoint_uuid": RECORDED,
            "name": "v",
            "comment": "c",
            "notes": "n",
            "labels": ["l"],
            "metadata": {"a": 1},
        },
        "/models/m/versions",
        ("metadata",),
    ),
    "PATCH /models/{}/versions/{}": Door(
        Role.USER,
        {
            "name": "v",
            "comment": "c",
            "notes": "n",
            "labels": ["l"],
            "metadata": {"a": 1},
            "revision": None,
        },
        "/models/m/versions/1",
        ("metadata",),
    ),
    "PUT /templates/{}": Door(
        Role.USER, {"config": "description: d", "expected_updated_ms": None}, "/templates/t"
    ),
    "PUT /agent-users": Door(Role.ADMIN, AGENT_USER, "/agent-users"),
    "PUT /experiment-views/{}": Door(
        Role.USER,
        {
            "filter": "lr>0.01",
            "columns": ["name", "metric:loss"],
            "sort": "metric:loss",
            "order": "asc",
            "group": "project",
            "shared": True,
        },
        "/experiment-views/v",
    ),
    "POST /reports": Door(
        Role.USER, {"title": "t", "text": "# t", "sharing": "private"}, "/reports"
    ),
    "PUT /reports/{}": Door(
        Role.USER, {"title": "t", "text": "# t", "sharing": "edit", "revision": 1}, "/reports/1"
    ),
    "PATCH /experiments/{}/retention": Door(
        Role.USER,
        {"log_retention_days": 7, "metrics_retention_days": None, "trial_id": None},
        "/experiments/1/retention",
    ),
    "POST /webhooks": Door(Role.USER, {**HOOK, "name": "h"}, "/webhooks"),
    "PATCH /webhooks/{}": Door(Role.USER, {**HOOK, "name": "hook"}, "/webhooks/1"),
    "POST /schedules": Door(
        Role.USER,
        {
            "config": f"{CONFIG}\nschedule: {{cron: '0 3 * * *'}}\n",
            "model_code": SHA256,
            "template": None,
            "overrides": ["name=x"],
            "paused": True,
        },
        "/schedules",
    ),
    "POST /tokens": Door(
        Role.ADMIN,
        {
            "user": "u",
            "role": "user",
            "resource_pool": None,
            "description": "d",
            "expires_days": 1,
        },
        "/tokens",
    ),
    "POST /tunnels": Door(
        Role.USER, {"trial_id": 1, "ports": [80], "certificate": "Y2VydA=="}, "/tunnels"
    ),
    "POST /agents/{}/tunnels/{}/tickets": Door(
        Role.AGENT, {"certificate": "Y2VydA=="}, "/agents/idle/tunnels/unknown-tunnel/tickets"
    ),
    "POST /sign-in-codes/token": Door(
        Role.USER, {"code": "dcc_x", "description": ""}, "/sign-in-codes/token"
    ),
    "POST /sessions": Door(Role.USER, {"code": "dcc_x", "token": None}, "/sessions"),
}


class HostileCluster:
    """A cluster with an object of each kind.

    An experiment whose two trials run on an agent, a custom search, a checkpoint, an open upload, a
    model version, a report and a template.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._sent = 0
        assert cluster.create(CONFIG).status == 201
        self.agent = Agent(cluster)
        assert self.agent.take_work() == ["1.1", "2.1"]
        assert cluster.create(CUSTOM).status == 201
        self.idle = Agent(cluster, "idle", slots=1)
        self.agents = [self.agent, self.idle]
        checkpoint(cluster, self.agent, 1, RECORDED, 2)
        self.agent.report("1.1", metrics(2, "validation", loss=0.5), metrics(2, loss=0.5))
        self.agent.log("1.1", 0, "a line\n")
        for path, body in (
            ("/checkpoint-uploads", {"trial_id": 1, "uuid": BEGUN}),
            ("/models", {"name": "m"}),
            ("/reports", {"title": "t"}),
            ("/webhooks", WEBHOOK),
            ("/models/m/versions", {"checkpoint_uuid": RECORDED}),
        ):
            assert cluster.post(path, body).status < 300
        self.send("PUT", "/templates/t", b'{"config": "description: d"}', Role.USER)
        self.job = str(cluster.get("/experiments/1").json["job_id"])

    def send(self, method: str, path: str, body: bytes, role: Role) -> Answer:
        """Send a body of JSON to a route as a caller of `role`."""
        token = self.idle.token if role is Role.AGENT else TOKENS[role]
        self._sent += 1
        # The answer to a request with a key is stored in a separate row.
        key = f"key-{self._sent}"
        headers = [("content-type", "application/json"), ("idempotency-key", key)]
        return call(self.cluster.app, method, V1 + path, token=token, headers=headers, body=body)

    def send_door(self, name: str, body: bytes) -> Answer:
        """Send a body to a door."""
        method, _ = name.split()
        door = DOORS[name]
        path, body = door.path.replace("{job}", self.job), body.replace(b"{job}", self.job.encode())
        return self.send(method, path, body, door.role)

    def described_bodies(self) -> set[str]:
        """Return the routes that accept JSON, from the API's description."""
        paths = self.cluster.get("/openapi.json").json["paths"]
        return {
            f"{method.upper()} {anonymous_path(path)}"
            for path, methods in paths.items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        }

    def experiment_ids(self) -> list[int]:
        """Return the ids of all experiments."""
        ids, cursor = list[int](), ""
        while True:
            answer = self.cluster.get(f"/experiments?limit=500&kind=all{cursor}")
            assert answer.status == 200, answer.body
            ids += [item["id"] for item in answer.json["items"]]
            if answer.json["next_cursor"] is None:
                return ids
            cursor = f"&cursor={answer.json['next_cursor']}"

    def end_allocations(self) -> None:
        """Report the exit of each allocation, as a killed trial does.

        Skip sessions that a later enrolment of the same agent replaced. Agents that a door enrolled
        are enrolled again, since a door keeps no token.
        """
        own = {agent.name for agent in self.agents}
        for item in self.cluster.get("/agents?limit=500").json["items"]:
            if item["id"] not in own:
                self.agents.append(Agent(self.cluster, item["id"], slots=1))
        exited = {"kind": "exited", "reason": "killed", "code": None}
        for agent in self.agents:
            answer = agent.sync()
            if answer.status == 401:
                continue
            assert answer.status == 200, answer.body
            for entry in answer.json["desired"]:
                agent.report(entry["allocation"], exited, writer="agent")

    def read_everything(self) -> list[str]:
        """Read every list and every detail; return a line for each unexpected answer."""
        faults = []
        for path in self._readable_paths():
            answer = call(self.cluster.app, "GET", V1 + path, token=TOKENS[Role.ADMIN])
            if answer.status >= 500:
                faults.append(f"GET {path}: {answer.status}")
            elif "json" in answer.headers.get("content-type", ""):
                content = json.loads(answer.body.decode(), parse_constant=_refuse_constant)
                if path.endswith("/replay") and answer.status == 200:
                    faults += [f"{path}: {one}" for one in content["items"] if one["difference"]]
        return faults

    def _readable_paths(self) -> Iterator[str]:
        paths = self.cluster.get("/openapi.json").json["paths"]
        experiments = self._ids("/experiments?limit=500", "id")
        experiments = sorted({*experiments[:3], *experiments[-3:]})
        trials = [
            trial
            for number in experiments
            for trial in self._ids(f"/experiments/{number}/trials?limit=500", "id")[-3:]
        ]
        models = self._ids("/models?limit=500", "name")
        values: Mapping[str, Sequence[object]] = {
            "experiment_id": experiments,
            "trial_id": trials,
            "uuid": [RECORDED],
            "resource_pool": ["default"],
            "name": sorted({"m", "t", *models[-3:]}),
            "number": [1, *self._ids("/models/m/versions?limit=500", "number")[-3:]],
            "job_id": [self.job],
            "report_id": self._ids("/reports?limit=500", "id")[-3:],
            "webhook_id": self._ids("/webhooks?limit=500", "id")[-3:],
            "delivery_id": [DELIVERY],
        }
        for path, methods in paths.items():
            if "get" not in methods or "{sha256}" in path or "{key}" in path:
                continue
            yield from _filled_paths(path.removeprefix(V1) + _QUERIES.get(path, ""), values)

    def _ids(self, path: str, field: str) -> list[Any]:
        answer = self.cluster.get(path)
        assert answer.status == 200, (path, answer.body[:300])
        return [item[field] for item in answer.json["items"]]


_QUERIES = {
    f"{V1}/trials/{{trial_id}}/metrics/series": "?group=validation&name=loss",
    f"{V1}/experiments/{{experiment_id}}/metrics": "?group=validation&name=loss",
    f"{V1}/experiments/{{experiment_id}}/code/file": "?path=model.py",
    f"{V1}/experiments/{{experiment_id}}/history": "?limit=500",
}


def _refuse_constant(name: str) -> object:
    raise AssertionError(f"an answer has {name}, which is no JSON")


def _filled_paths(path: str, values: Mapping[str, Sequence[object]]) -> Iterator[str]:
    name, found = path.partition("{")[2].partition("}")[0], "{" in path
    if not found:
        yield path
        return
    for value in values.get(name, ()):
        yield from _filled_paths(path.replace(f"{{{name}}}", str(value)), values)


def anonymous_path(path: str) -> str:
    """Return a path of the description without the names of parameters."""
    parts = path.removeprefix(V1).split("/")
    return "/".join("{}" if part.startswith("{") else part for part in parts)


def leaf_places(body: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each value in a body, nested values included."""
    if place:
        yield place
    if not isinstance(body, dict | list):
        return
    for name, child in body.items() if isinstance(body, dict) else enumerate(body):
        yield from leaf_places(child, (*place, name))


def with_value(body: Any, place: Place, text: bytes) -> bytes:
    """Return the body as JSON with `text` at a place."""
    marked = _with_mark(body, place)
    return json.dumps(marked).encode().replace(json.dumps(MARK).encode(), text)


def _with_mark(body: Any, place: Place) -> Any:
    if not place:
        return MARK
    copy: Any = dict(body) if isinstance(body, dict) else list(body)
    copy[place[0]] = _with_mark(copy[place[0]], place[1:])
    return copy
