"""A cluster of one process that speaks docs/api.md and keeps its state; trials train as we look."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Item = dict[str, Any]

TOKEN = "token-of-the-test"
KNOWN_FIELDS = {"name", "searcher", "hyperparameters", "max_restarts", "entrypoint"}
ENDED = ("COMPLETED", "CANCELED", "ERROR")


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, details: list[Item] | None = None):
        self.status = status
        self.body = {"error": {"code": code, "message": message, "details": details or []}}


class FakeCluster:
    """The state. Every look at an ACTIVE experiment trains its trials by one step of two."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, bytes] = {}
        self.experiments: list[Item] = []
        self.trials: list[Item] = []
        self.logs: dict[int, str] = {}
        self.checkpoints: list[Item] = []
        self.files: dict[str, list[Item]] = {}
        self.answers: dict[str, tuple[str, Item]] = {}
        self.requests: list[tuple[str, str]] = []
        self.object_tokens: set[str | None] = set()
        self.ending = "COMPLETED"
        self.losses_left = 0

    def answer(self, method: str, target: str, headers: Item, body: bytes) -> Item | bytes | None:
        parts = urlsplit(target)
        self.requests.append((method, parts.path))
        token = headers.get("authorization")
        if parts.path.startswith("/objects/"):
            self.object_tokens.add(token)
            return self._object(method, parts.path.removeprefix("/objects/"), headers, body)
        path = parts.path.removeprefix("/api/v1")
        if path == "/health":
            return {"status": "ok"}
        if token != f"Bearer {TOKEN}":
            raise Refusal(401, "unauthenticated", "the token is not known")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if method == "GET":
            return self._get(path, query)
        return self._once(headers["idempotency-key"], path, body)

    def _once(self, key: str, path: str, body: bytes) -> Item:
        digest = hashlib.sha256(path.encode() + body).hexdigest()
        if key in self.answers:
            known, answer = self.answers[key]
            if known != digest:
                raise Refusal(409, "conflict", "the key was used for another body")
            return answer
        answer = self._post(path, json.loads(body))
        self.answers[key] = (digest, answer)
        return answer

    def _post(self, path: str, body: Item) -> Item:
        if path == "/model-code":
            if body["sha256"] in self.objects:
                return {"needed": False, "upload": None}
            upload = {"method": "PUT", "path": f"/objects/{body['sha256']}", "expires_ms": 9}
            return {"needed": True, "upload": {**upload, "headers": {"X-Signed": "yes"}}}
        if path == "/experiments":
            return self._create(body)
        if found := re.fullmatch(r"/experiments/(\d+)/(pause|activate|cancel|kill)", path):
            return self._command(self._experiment(int(found[1])), found[2])
        raise Refusal(404, "not_found", f"there is no {path}")

    def _get(self, path: str, query: Item) -> Item:
        routes: list[tuple[str, Callable[..., Item]]] = [
            (r"/cluster", lambda: self._overview()),
            (r"/agents", lambda: _page([_agent()], query)),
            (r"/experiments", lambda: _page(self._listed(query), query)),
            (r"/experiments/(\d+)", lambda id: self._look(self._experiment(int(id)))),
            (r"/experiments/(\d+)/trials", lambda id: _page(self._trials_of(int(id)), query)),
            (r"/experiments/(\d+)/checkpoints", lambda id: _page(self.checkpoints, query)),
            (r"/trials/(\d+)/checkpoints", lambda id: _page(self.checkpoints, query)),
            (r"/trials/(\d+)", lambda id: self._trial(int(id))),
            (r"/trials/(\d+)/metrics", lambda id: _page(self._metrics(int(id), query), query)),
            (r"/trials/(\d+)/logs", lambda id: self._log(int(id), query)),
            (r"/checkpoints/([^/]+)", lambda prefix: self._checkpoint(prefix)),
            (r"/checkpoints/([^/]+)/files", lambda uuid: {"items": self.files[uuid]}),
        ]
        for pattern, route in routes:
            if found := re.fullmatch(pattern, path):
                return route(*found.groups())
        raise Refusal(404, "not_found", f"there is no {path}")

    def _object(self, method: str, name: str, headers: Item, body: bytes) -> bytes | None:
        if method == "GET":
            return self.objects[name]
        assert headers["x-signed"] == "yes"
        assert hashlib.sha256(body).hexdigest() == name
        self.objects[name] = body
        return None

    def _create(self, body: Item) -> Item:
        tree = yaml.safe_load(body["config"])
        details = [
            {"path": name, "line": _line_of(body["config"], name), "message": "unknown field"}
            for name in tree
            if name not in KNOWN_FIELDS
        ]
        if details:
            raise Refusal(422, "invalid", "the configuration has problems", details)
        if body["model_code"] not in self.objects:
            raise Refusal(422, "invalid", "the model code was not uploaded")
        return self.add_experiment(tree, body)

    def add_experiment(self, tree: Item, body: Item) -> Item:
        number = len(self.experiments) + 1
        experiment = {
            "id": number,
            "name": tree.get("name", "unnamed"),
            "state": "PAUSED" if body.get("paused") else "ACTIVE",
            "user": "ada",
            "resource_pool": "default",
            "searcher": "single",
            "metric": "validation_loss",
            "progress": 0.0,
            "best_metric": None,
            "best_trial_id": None,
            "created_ms": 0,
            "ended_ms": None,
            "config": tree,
            "asked": body,
        }
        self.experiments.append(experiment)
        for trial_number in range(2):
            self._add_trial(number, trial_number)
        return dict(experiment)

    def _add_trial(self, experiment_id: int, number: int) -> None:
        trial: Item = {
            "id": len(self.trials) + 1,
            "experiment_id": experiment_id,
            "number": number,
            "state": "ACTIVE",
            "hparams": {"lr": 0.1 / (number + 1), "net": {"layers": 3}},
            "steps_completed": 0,
            "target_steps": 200,
            "metric": None,
            "best_metric": None,
            "restarts": 0,
            "latest_checkpoint": None,
            "allocation": None,
            "created_ms": 0,
            "ended_ms": None,
        }
        self.trials.append(trial)
        self.logs[trial["id"]] = ""

    def _look(self, experiment: Item) -> Item:
        """Answers what was before, then moves time on."""
        before = dict(experiment)
        if experiment["state"] == "ACTIVE":
            self._train(experiment)
        elif experiment["state"].startswith("STOPPING_"):
            experiment.update(state="CANCELED", ended_ms=5000)
        return before

    def _train(self, experiment: Item) -> None:
        for trial in self._trials_of(experiment["id"]):
            steps = trial["steps_completed"] + 100
            # After 200 steps: trial 0 has 1/201, trial 1 has 2/201, so trial 0 is the best.
            trial.update(steps_completed=steps, metric=(trial["number"] + 1) / (steps + 1))
            trial["allocation"] = {"id": f"{trial['id']}.1", "state": "RUNNING", "slots": [0]}
            self.logs[trial["id"]] += f"step {steps} ünder way\n"
            if steps == trial["target_steps"]:
                trial.update(state=self.ending, ended_ms=4000, allocation=None)
        first = self._trials_of(experiment["id"])[0]
        experiment["progress"] = first["steps_completed"] / 200
        if first["state"] == self.ending:
            best = {"best_metric": first["metric"], "best_trial_id": first["id"]}
            experiment.update(state=self.ending, ended_ms=4000, **best)

    def _command(self, experiment: Item, name: str) -> Item:
        if experiment["state"] in ENDED:
            raise Refusal(409, "conflict", f"experiment {experiment['id']} has ended")
        experiment["state"] = {
            "pause": "PAUSED",
            "activate": "ACTIVE",
            "cancel": "STOPPING_CANCELED",
            "kill": "STOPPING_KILLED",
        }[name]
        return dict(experiment)

    def _experiment(self, number: int) -> Item:
        if not 0 < number <= len(self.experiments):
            raise Refusal(404, "not_found", f"there is no experiment {number}")
        return self.experiments[number - 1]

    def _trial(self, number: int) -> Item:
        if not 0 < number <= len(self.trials):
            raise Refusal(404, "not_found", f"there is no trial {number}")
        return self.trials[number - 1]

    def _trials_of(self, experiment_id: int) -> list[Item]:
        return [trial for trial in self.trials if trial["experiment_id"] == experiment_id]

    def _listed(self, query: Item) -> list[Item]:
        states = query.get("state", "").split(",") if query.get("state") else None
        newest_first = reversed(self.experiments)
        return [item for item in newest_first if states is None or item["state"] in states]

    def _metrics(self, number: int, query: Item) -> list[Item]:
        metrics = {"loss": self._trial(number)["metric"]}
        groups = [
            {"group": group, "steps_completed": 100, "metrics": metrics, "time_ms": 1000}
            for group in ("training", "validation")
        ]
        return [it for it in groups if query.get("group") in (None, it["group"])]

    def _log(self, number: int, query: Item) -> Item:
        whole = self.logs[self._trial(number)["id"]].encode()
        after = int(query.get("after", 0))
        if "tail_bytes" in query:
            after = max(0, len(whole) - int(query["tail_bytes"]))
        text = whole[after : after + int(query["limit_bytes"])]
        complete = self._trial(number)["ended_ms"] is not None and after + len(text) == len(whole)
        return {"text": text.decode(), "next": after + len(text), "complete": complete}

    def _checkpoint(self, prefix: str) -> Item:
        found = [item for item in self.checkpoints if item["uuid"].startswith(prefix)]
        if len(found) != 1:
            raise Refusal(404, "not_found", f"{len(found)} checkpoints begin with {prefix}")
        return found[0]

    def add_checkpoint(self, uuid: str, contents: dict[str, bytes]) -> list[Item]:
        """Returns the list of files, which may be changed afterwards."""
        self.files[uuid] = []
        for number, (path, content) in enumerate(contents.items()):
            name = f"{uuid}-{number}"
            self.objects[name] = content
            self.files[uuid].append(
                {
                    "path": path,
                    "size": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "url": f"{self.url}/objects/{name}",
                }
            )
        self.checkpoints.append(
            {
                "uuid": uuid,
                "trial_id": 1,
                "experiment_id": 1,
                "steps_completed": 100,
                "state": "COMPLETED",
                "size_bytes": sum(map(len, contents.values())),
                "files": len(contents),
                "metric": 0.5,
                "created_ms": 1000,
            }
        )
        return self.files[uuid]

    def _overview(self) -> Item:
        pool = {"name": "default", "slots": 2, "free_slots": 2, "queued": 0, "running": 0}
        return {"cluster_id": "c", "version": "0.1.0", "resource_pools": [{**pool, "agents": 1}]}


@contextmanager
def serving(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Serves `cluster` on a free port until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(cluster))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler_of(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def log_message(self, format: str, *values: object) -> None:
            return

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, answer = 200, cluster.answer(self.command, self.path, headers, body)
            except Refusal as refusal:
                status, answer = refusal.status, refusal.body
            if self.command == "POST" and cluster.losses_left:
                # The mutation happened and its answer is lost.
                cluster.losses_left -= 1
                self.close_connection = True
                return
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

    return Handler


def _page(items: list[Item], query: Item) -> Item:
    start = int(query.get("cursor", 0))
    end = start + int(query.get("limit", 100))
    return {"items": items[start:end], "next_cursor": str(end) if end < len(items) else None}


def _agent() -> Item:
    slots = [{"id": 0, "type": "cpu"}, {"id": 1, "type": "cpu"}]
    return {"agent_id": "a-1", "name": "laptop", "resource_pool": "default", "slots": slots}


def _line_of(text: str, name: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(f"{name}:"))
