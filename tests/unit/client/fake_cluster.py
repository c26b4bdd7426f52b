"""A cluster in one process, with the requests of docs/api.md; read requests train its trials."""

import hashlib
import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.unit.client import fake_costs, fake_forks, fake_measures
from tests.unit.client.fake_collection import collection_preview, deletion_preview
from tests.unit.client.fake_machines import FakeMachines
from tests.unit.client.fake_metadata import PATCHED, FakeMetadata
from tests.unit.client.fake_queue import FakeQueue
from tests.unit.client.fake_records import new_checkpoint, new_experiment, new_trial
from tests.unit.client.fake_refusal import Item, Refusal, page
from tests.unit.client.fake_views import FakeViews

__all__ = ["TOKEN", "FakeCluster", "Item", "Refusal"]

TOKEN = "token-of-the-test"
KNOWN_FIELDS = {"name", "searcher", "hyperparameters", "max_restarts", "entrypoint"}
ENDED = ("COMPLETED", "CANCELED", "ERROR", "DELETE_FAILED")


class FakeCluster:
    """State of a cluster; a read of an ACTIVE experiment trains its trials by 100 of 200 steps."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, bytes] = {}
        self.experiments: list[Item] = []
        self.trials: list[Item] = []
        self.logs: dict[int, str] = {}
        self.checkpoints: list[Item] = []
        self.places: dict[str, Item] = {}
        self.unrecorded: list[Item] = []
        self.files: dict[str, list[Item]] = {}
        # Versions by number, for every name of a model.
        self.versions: dict[int, Item] = {}
        self.answers: dict[str, tuple[str, Item]] = {}
        self.requests: list[tuple[str, str]] = []
        # Called with the method and the target of each request; a Refusal is the answer.
        self.on_request: Callable[[str, str], None] = lambda method, target: None
        self.object_tokens: set[str | None] = set()
        self.ending = "COMPLETED"
        self.losses_left = 0
        # Number of uploads with a lost answer, and the status for an upload of a stored object.
        self.upload_losses = 0
        self.replacing: int | None = None
        self.refuses_uploads = False
        self.lines: dict[int, list[Item]] = {}
        self.differences: dict[str, Item] = {}
        self.merged_trials_max = 100
        self.deletion = "DELETED"
        # Metric reports of every trial; an empty list stands for one report per group.
        self.reports: list[Item] = []
        self.rank_reports: dict[int, list[Item]] = {}
        self.warnings: list[str] = []
        self.alarms: list[Item] = []
        self.importance: Item = {}
        self.importance_query: Item = {}
        # The sums of the replacements of each experiment. None: the cluster has an older version.
        self.replacements: Item | None = None
        # The family and the pace of each experiment. None: the cluster has an older version.
        self.family: Item | None = None
        self.pace: Item | None = None
        self.machines = FakeMachines()
        self.queue = FakeQueue()
        self.metadata = FakeMetadata()
        self.views = FakeViews()
        # The query of the last list of experiments.
        self.list_query: dict[str, list[str]] = {}

    def answer(self, method: str, target: str, headers: Item, body: bytes) -> Item | bytes | None:
        parts = urlsplit(target)
        self.requests.append((method, parts.path))
        self.on_request(method, target)
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
            if path == "/experiments":
                self.list_query = parse_qs(parts.query)
            if (views := self.views.get(path, query)) is not None:
                return views
            return self._get(path, parse_qs(parts.query), query)
        if method == "DELETE" and (deleted := self.views.delete(path, query)) is not None:
            return deleted
        return self._answer_once(method, headers["idempotency-key"], path, body)

    def _answer_once(self, method: str, key: str, path: str, body: bytes) -> Item:
        digest = hashlib.sha256(f"{method} {path}".encode() + body).hexdigest()
        if key in self.answers:
            known, answer = self.answers[key]
            if known != digest:
                raise Refusal(409, "conflict", "the key was used for another body")
            return answer
        content = json.loads(body or b"null")
        queued = self.queue.change(method, path, content)
        if queued is None and method == "PUT":
            queued = self.views.put(path, content)
        if queued is not None:
            self.answers[key] = (digest, queued)
            return queued
        change = {"POST": self._post, "PATCH": self._patch}.get(method, self.machines.put)
        answer = self._delete(path) if method == "DELETE" else change(path, json.loads(body))
        self.answers[key] = (digest, answer)
        return answer

    def _post(self, path: str, body: Item) -> Item:
        if path == "/model-code":
            if body["sha256"] in self.objects:
                return {"needed": False, "upload": None}
            upload = {"method": "PUT", "path": f"/objects/{body['sha256']}", "expires_ms": 9}
            return {"needed": True, "upload": {**upload, "headers": {"X-Signed": "yes"}}}
        if path == "/sign-in-codes":
            return {"code": "dct_code", "path": "/ui/#/sign-in/dct_code", "expires_ms": 9}
        if path == "/experiments":
            return self._create(body)
        if path == "/search-previews":
            return fake_forks.search_preview(body)
        if found := re.fullmatch(r"/experiments/(\d+)/(\w+)", path):
            return self._command(self._experiment(int(found[1])), found[2], body)
        if found := re.fullmatch(r"/trials/(\d+)/kill", path):
            trial = self._trial(int(found[1]))
            trial["state"] = "STOPPING_KILLED"
            return dict(trial)
        return self.machines.post(path, body)

    def _patch(self, path: str, body: Item) -> Item:
        if not path.startswith("/experiments/"):
            return self.metadata.patch(self.trials, self.checkpoints, path, body)
        experiment = self._experiment(int(path.rpartition("/")[2]))
        assert body.keys() <= PATCHED
        experiment.update(body)
        return dict(experiment)

    def _delete(self, path: str) -> Item:
        if found := re.fullmatch(r"/experiments/(\d+)(/tensorboard)?", path):
            experiment = self._experiment(int(found[1]))
            if experiment["state"] not in ENDED:
                raise Refusal(409, "conflict", f"experiment {found[1]} has not ended")
            if not found[2]:
                experiment["state"] = "DELETING"
            return dict(experiment)
        if found := re.fullmatch(r"/checkpoints/([^/]+)(/damage)?", path):
            checkpoint = self._checkpoint(found[1])
            if found[2] and checkpoint.get("owner", "ada") != "ada":
                raise Refusal(403, "forbidden", f"experiment 1 is {checkpoint['owner']}'s")
            checkpoint["state"] = "COMPLETED" if found[2] else "DELETING"
            return dict(checkpoint)
        return self.machines.delete(path)

    def _list_alarms(self, name: str) -> Item:
        return {"items": [alarm for alarm in self.alarms if alarm["alarm"] == name]}

    def _get(self, path: str, query_lists: dict[str, list[str]], query: Item) -> Item | bytes:
        routes: list[tuple[str, Callable[..., Item | bytes]]] = [
            (r"/cluster", self._overview),
            (r"/alarms", lambda: {"items": self.alarms}),
            (r"/alarms/([\w-]+)", self._list_alarms),
            (r"/cost", lambda: fake_costs.cost_report(query)),
            (r"/usage", lambda: fake_costs.usage_report(query)),
            (r"/whoami", lambda: {"user": "ada", "role": "user"}),
            (r"/model-code/(\w+)", lambda sha256: self.objects[sha256]),
            (r"/experiments", lambda: page(self._list_experiments(query), query)),
            (
                r"/experiments/(\d+)",
                lambda id: self._describe_then_advance(self._experiment(int(id))),
            ),
            (
                r"/experiments/(\d+)/trials",
                lambda id: page(self._experiment_trials(int(id)), query),
            ),
            (r"/experiments/(\d+)/checkpoints", lambda id: page(self.checkpoints, query)),
            (
                r"/experiments/(\d+)/unrecorded-checkpoints",
                lambda id: page(self.unrecorded, query),
            ),
            (
                r"/experiments/(\d+)/checkpoint-gc",
                lambda id: collection_preview(self.checkpoints, query),
            ),
            (r"/experiments/(\d+)/history", lambda id: page(self._history(int(id), query), query)),
            (r"/experiments/(\d+)/replacements", self._replacement_sums),
            (r"/experiments/(\d+)/(family|pace)", self._find_fork_answer),
            (r"/experiments/(\d+)/replay", lambda id: page(self._replay(int(id)), query)),
            (
                r"/experiments/(\d+)/metrics",
                lambda id: fake_measures.best_trials_series(self, int(id), query),
            ),
            (r"/experiments/(\d+)/importance", lambda id: self._find_importance(query)),
            (r"/trials/(\d+)/checkpoints", lambda id: page(self.checkpoints, query)),
            (r"/trials/(\d+)", lambda id: self._trial(int(id))),
            (r"/trials/(\d+)/metrics", lambda id: page(self._metrics(int(id), query), query)),
            (
                r"/trials/(\d+)/metrics/names",
                lambda id: fake_measures.metric_names(self._trial(int(id))),
            ),
            (
                r"/trials/(\d+)/metrics/series",
                lambda id: fake_measures.metric_series(self._trial(int(id)), query_lists),
            ),
            (r"/trials/(\d+)/logs", lambda id: self._log(int(id), query)),
            (
                r"/trials/(\d+)/logs/lines",
                lambda id: fake_measures.log_lines_page(
                    self.lines.get(int(id), []), query, self._trial(int(id))["ended_ms"] is not None
                ),
            ),
            (r"/models/(\w+)", lambda name: {"name": name}),
            (r"/models/\w+/versions/(\d+)", lambda number: self.versions[int(number)]),
            (r"/checkpoints/([^/]+)", lambda prefix: self._checkpoint(prefix)),
            (r"/checkpoints/([^/]+)/files", lambda uuid: page(self.files[uuid], query)),
            (
                r"/checkpoints/([^/]+)/deletion",
                lambda uuid: deletion_preview(self._checkpoint(uuid)),
            ),
            (r"/checkpoints/([^/]+)/storage", lambda uuid: self.places[uuid]),
        ]
        for pattern, route in routes:
            if found := re.fullmatch(pattern, path):
                return route(*found.groups())
        return self.queue.get(path, query) or self.machines.get(path, query)

    def _replacement_sums(self, id: str) -> Item:
        if self.replacements is None:
            raise Refusal(404, "not_found", "the API has no such route")
        return {"experiment_id": int(id), **self.replacements}

    def _find_fork_answer(self, id: str, name: str) -> Item:
        answer = {"family": self.family, "pace": self.pace}[name]
        if answer is None:
            raise Refusal(404, "not_found", "the API has no such route")
        return {"experiment_id": int(id), **answer}

    def _object(self, method: str, name: str, headers: Item, body: bytes) -> bytes | None:
        if method == "GET":
            if name not in self.objects:
                raise Refusal(404, "not_found", f"there is no object {name}")
            return self.objects[name]
        assert headers["x-signed"] == "yes"
        assert hashlib.sha256(body).hexdigest() == name
        if name in self.objects and self.replacing is not None:
            raise Refusal(self.replacing, "conflict", "there is an object already")
        if self.refuses_uploads:
            raise Refusal(403, "forbidden", "the signature is not right")
        self.objects[name] = body
        self.losses_left, self.upload_losses = self.losses_left + self.upload_losses, 0
        return None

    def _create(self, body: Item) -> Item:
        tree = yaml.safe_load(body["config"])
        if "forked_from" in body:
            tree = fake_forks.override(tree, body["overrides"])
        details = [
            {"path": name, "line": _line_number(body["config"], name), "message": "unknown field"}
            for name in tree
            if name not in KNOWN_FIELDS
        ]
        if details:
            raise Refusal(422, "invalid", "the configuration has problems", details)
        if body.get("validate_only") and "forked_from" in body:
            return fake_forks.preview(tree, self.warnings)
        if body.get("validate_only"):
            return {"id": None, "warnings": [f"{tree.get('name')} was checked by the cluster"]}
        if body["model_code"] not in self.objects:
            raise Refusal(422, "invalid", "the model code was not uploaded")
        return self.add_experiment(tree, body)

    def add_experiment(self, tree: Item, body: Item) -> Item:
        number = len(self.experiments) + 1
        experiment = new_experiment(number, tree, body, self.warnings)
        self.experiments.append(experiment)
        for trial_number in range(2):
            self._add_trial(number, trial_number)
        return dict(experiment)

    def _add_trial(self, experiment_id: int, number: int) -> None:
        trial = new_trial(len(self.trials) + 1, experiment_id, number)
        self.trials.append(trial)
        self.logs[trial["id"]] = ""

    def _describe_then_advance(self, experiment: Item) -> Item:
        """Answer with the state before, then move time on."""
        before = dict(experiment)
        if experiment["state"] == "ACTIVE":
            self._train(experiment)
        elif experiment["state"].startswith("STOPPING_"):
            experiment.update(state="CANCELED", ended_ms=5000)
        elif experiment["state"] == "DELETING":
            experiment.update(state=self.deletion, message="the store is full")
        return before

    def _train(self, experiment: Item) -> None:
        for trial in self._experiment_trials(experiment["id"]):
            steps = trial["steps_completed"] + 100
            # After 200 steps: trial 0 has 1/201, trial 1 has 2/201, so trial 0 is the best.
            trial.update(steps_completed=steps, metric=(trial["number"] + 1) / (steps + 1))
            trial["allocation"] = {"id": f"{trial['id']}.1", "state": "RUNNING", "slots": [0]}
            self.logs[trial["id"]] += f"step {steps} ünder way\n"
            if steps == trial["target_steps"]:
                trial.update(state=self.ending, ended_ms=4000, allocation=None)
        first = self._experiment_trials(experiment["id"])[0]
        experiment["progress"] = first["steps_completed"] / 200
        if first["state"] == self.ending:
            best = {"best_metric": first["metric"], "best_trial_id": first["id"]}
            experiment.update(state=self.ending, ended_ms=4000, **best)

    def _command(self, experiment: Item, name: str, body: Item) -> Item:
        has_ended = experiment["state"] in ENDED
        if name in ("archive", "unarchive", "continue"):
            if not has_ended:
                raise Refusal(409, "conflict", f"experiment {experiment['id']} has not ended")
            experiment["archived"] = name == "archive"
            if name == "continue":
                experiment.update(state="ACTIVE", asked=body)
            return dict(experiment)
        if has_ended:
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
        if self.experiments[number - 1]["state"] == "DELETED":
            raise Refusal(404, "not_found", f"experiment {number} was deleted")
        return self.experiments[number - 1]

    def _trial(self, number: int) -> Item:
        if not 0 < number <= len(self.trials):
            raise Refusal(404, "not_found", f"there is no trial {number}")
        return self.trials[number - 1]

    def _experiment_trials(self, experiment_id: int) -> list[Item]:
        return [trial for trial in self.trials if trial["experiment_id"] == experiment_id]

    def _list_experiments(self, query: Item) -> list[Item]:
        states = query.get("state", "").split(",") if query.get("state") else None
        archived = {"true": (True,), "all": (True, False)}.get(query.get("archived", ""), (False,))
        return [
            item
            for item in reversed(self.experiments)
            if (states is None or item["state"] in states)
            and item["archived"] in archived
            and query.get("name", "") in item["name"]
            and query.get("label") in (None, *item["labels"])
        ]

    def _find_importance(self, query: Item) -> Item:
        self.importance_query = query
        return self.importance

    def _history(self, number: int, query: Item) -> list[Item]:
        trials = [f"trial#{entry['id']}" for entry in self._experiment_trials(number)]
        if len(trials) > self.merged_trials_max and query.get("actor") is None:
            trials = []
        actors = [f"experiment#{number}", *trials]
        return [
            {"time_ms": 1000, "actor": actor, "revision": 1, "text": "began", "reasons": ["asked"]}
            for actor in actors
            if query.get("actor") in (None, actor)
        ]

    def _replay(self, number: int) -> list[Item]:
        actors = [entry["actor"] for entry in self._history(number, {})]
        return [
            {"actor": actor, "entries": 4, "difference": self.differences.get(actor)}
            for actor in actors
        ]

    def _metrics(self, number: int, query: Item) -> list[Item]:
        metrics = {"loss": self._trial(number)["metric"]}
        groups = [
            {"group": group, "steps_completed": 100, "metrics": metrics, "time_ms": 1000}
            for group in ("training", "validation")
        ]
        groups = self.reports or groups
        if "rank" in query:
            groups = self.rank_reports.get(int(query["rank"]), [])
        return [entry for entry in groups if query.get("group") in (None, entry["group"])]

    def _log(self, number: int, query: Item) -> Item:
        whole = self.logs[self._trial(number)["id"]].encode()
        after = int(query.get("after", 0))
        if "tail_bytes" in query:
            after = max(0, len(whole) - int(query["tail_bytes"]))
        text = whole[after : after + int(query["limit_bytes"])]
        complete = self._trial(number)["ended_ms"] is not None and after + len(text) == len(whole)
        return {"text": text.decode(), "next": after + len(text), "complete": complete}

    def _checkpoint(self, prefix: str) -> Item:
        matches = [item for item in self.checkpoints if item["uuid"].startswith(prefix)]
        if len(matches) != 1:
            raise Refusal(404, "not_found", f"{len(matches)} checkpoints begin with {prefix}")
        return matches[0]

    def add_checkpoint(self, uuid: str, contents: dict[str, bytes]) -> list[Item]:
        """Return the list of files, which may be changed afterwards."""
        self.files[uuid] = []
        for number, (path, content) in enumerate(contents.items()):
            name = f"{uuid}-{number}"
            self.objects[name] = content
            digest = hashlib.sha256(content).hexdigest()
            file = {"path": path, "size": len(content), "sha256": digest}
            self.files[uuid].append({**file, "url": f"{self.url}/objects/{name}"})
        self.checkpoints.append(new_checkpoint(uuid, contents))
        return self.files[uuid]

    def _overview(self) -> Item:
        pool = {"name": "default", "slots": 2, "free_slots": 2, "queued": 0, "running": 0}
        return {"cluster_id": "c", "version": "0.1.0", "resource_pools": [{**pool, "agents": 1}]}


def _line_number(text: str, name: str) -> int:
    lines = enumerate(text.splitlines(), 1)
    return next((n for n, line in lines if line.startswith(f"{name}:")), 1)
