"""A runner and a cluster in one process: both real, except for the connection and the training.

The metric of a trial at a length follows from its hyperparameters. Tests can end the runner at any
counted step, a request or a write to the disk, by `Crash`, a BaseException.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import UUID, uuid4

from control_plane.access.principals import Role
from detcloud import searcher
from detcloud.client import Client
from detcloud.searcher.folder import StateFolder, sync_path
from detcloud.shared.http import ApiError, Transport, Unreachable
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, build_cluster
from tests.unit.api.exchange import call

CUSTOM = CONFIG.replace(
    "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}",
    "{name: custom, metric: loss, unit: batches}",
)


class Crash(BaseException):
    """End of the process."""


class Steps:
    """Counter of the steps of a process, with an end at the steps in `crashes`."""

    def __init__(self, crashes: frozenset[int] = frozenset()) -> None:
        self.done = 0
        self.crashes = crashes

    def step(self) -> None:
        self.done += 1
        if self.done in self.crashes:
            raise Crash


class Wire(Transport):
    """Transport to the application in the same process, with losses before or after a request."""

    def __init__(self, harness: SearchHarness) -> None:
        super().__init__("http://cluster.test", "token")
        self._beside = harness

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        retry: bool = True,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Hand the request to the application, twice or with a lost answer where events."""
        harness = self._beside
        harness.requests += 1
        number = harness.requests
        harness.steps.step()
        harness.before(method, path)
        for _ in range(2 if number in harness.doubled else 1):
            answer = call(
                harness.cluster.app,
                method,
                path.replace("wait_seconds=20", "wait_seconds=0"),
                token=TOKENS[Role.USER],
                headers=[*(headers or {}).items()],
                content=body,
            )
        harness.steps.step()
        if number in harness.lost:
            raise Unreachable("the answer was lost")
        if answer.status >= 300:
            error = answer.json["error"]
            raise ApiError(answer.status, error["code"], error["message"])
        return answer.json

    def upload(
        self,
        path_or_url: str,
        file: BinaryIO,
        size: int,
        *,
        method: str = "PUT",
        headers: Mapping[str, str] | None = None,
        retry: bool = True,
    ) -> None:
        """Hand the upload to the application."""
        self._beside.steps.step()
        sent = [*(headers or {}).items()]
        answer = call(self._beside.cluster.app, method, path_or_url, headers=sent, body=file.read())
        assert answer.status < 300, answer.body


class QuickRunner(searcher.LocalSearchRunner):
    """Runner without pauses, whose files are flushed to disk by `sync`."""

    def __init__(
        self,
        method: searcher.SearchMethod,
        path: Path,
        client: Client,
        sync: Callable[[Path], None],
    ) -> None:
        self.searcher_dir = path
        searcher.SearchRunner.__init__(
            self, method, StateFolder(path, sync), lambda: client, sleep=lambda _seconds: None
        )


Runner = TypeVar("Runner", bound=QuickRunner)


class SearchHarness:
    """A cluster in `root` with an agent, and runners of the search in `root`/search."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = build_cluster(root)
        self.agent = Agent(self.cluster)
        self.steps = Steps()
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.lengths_by_trial: dict[str, list[int]] = {}
        # What a trial gives its searcher.
        self.answer: Callable[[int, float], dict[str, Any]] = lambda length, x: {
            "metric": x / length
        }
        self.requests = 0
        self.lost: frozenset[int] = frozenset()
        self.doubled: frozenset[int] = frozenset()

    def restart(self) -> None:
        """The server ends and comes back."""
        self.cluster = self.agent.cluster = build_cluster(self.root)

    def client(self) -> Client:
        client = Client("http://cluster.test", "token")
        client.http = Wire(self)
        return client

    def new_runner(self, method: searcher.SearchMethod) -> searcher.LocalSearchRunner:
        """Make a fresh runner of the search; a request for events trains the trials."""
        return self.prepare_runner(QuickRunner, method)

    def prepare_runner(self, kind: type[Runner], method: searcher.SearchMethod) -> Runner:
        """Make a runner of a class; a request for events trains the trials."""
        self.before = self._train_when_looking
        return kind(method, self.root / "search", self.client(), self._sync_in_steps)

    def _sync_in_steps(self, path: Path) -> None:
        """Flush a file to disk. Count a step before and a step after."""
        self.steps.step()
        sync_path(path)
        self.steps.step()

    def files(self, config: str = CUSTOM) -> tuple[Path, Path]:
        """Write a configuration and a folder of model code, and return their paths."""
        model = self.root / "model"
        model.mkdir(exist_ok=True)
        (model / "train.py").write_text("print(1)\n")
        path = self.root / "custom.yaml"
        path.write_text(config)
        return path, model

    def run(
        self,
        method: searcher.SearchMethod,
        *,
        config: str = CUSTOM,
        before: Callable[[str, str], None] | None = None,
    ) -> int:
        """Run a fresh runner to its end, with a call of `before` before each request."""
        runner = self.new_runner(method)
        self.before = before or self.before
        return runner.run(*self.files(config))

    def lengths(self) -> dict[float, list[int]]:
        """Return the lengths of the validations of each trial, by the trial's x."""
        lengths: dict[float, list[int]] = {}
        for trial in self.get("/experiments/1/trials?limit=500")["items"]:
            assert trial["hparams"]["x"] not in lengths, "a trial was made twice"
            lengths[trial["hparams"]["x"]] = self.lengths_by_trial.get(str(trial["id"]), [])
        return lengths

    def get(self, path: str) -> Any:
        return call(self.cluster.app, "GET", V1 + path, token=TOKENS[Role.USER]).json

    def train(self) -> None:
        """Train every trial with slots to the length in its directives, or end the trial."""
        for entry in self.agent.sync().json["desired"]:
            allocation, directives = entry["allocation"], entry["directives"]
            trial = allocation.partition(".")[0]
            if entry["state"] != "run":
                self._exit(allocation, "killed")
                continue
            if allocation not in self.agent.known:
                self.agent.known.append(allocation)
            lengths = self.lengths_by_trial.setdefault(trial, [])
            if directives["length"] not in lengths:
                lengths.append(directives["length"])
                x = self.get(f"/trials/{trial}")["hparams"]["x"]
                self._validate(allocation, directives["length"], x)
            else:
                self._exit(allocation, "completed" if directives["closed"] else "idle")

    def _validate(self, allocation: str, length: int, x: float) -> None:
        done = {"kind": "completed", "length": length, **self.answer(length, x)}
        self.agent.report(allocation, metrics(length, "validation", loss=x / length), done)

    def _exit(self, allocation: str, reason: str) -> None:
        exited = {"kind": "exited", "reason": reason, "code": 0}
        self.agent.report(allocation, exited, writer="agent")
        self.agent.known = [known for known in self.agent.known if known != allocation]

    def _train_when_looking(self, method: str, path: str) -> None:
        if "wait_seconds=20" in path:
            self.train()


class Generations(searcher.SearchMethod):
    """Search with a validation of every trial at 2, and of good trials also at 4 and 6.

    Each trial has children. The trials do not depend on the order of events.
    """

    def __init__(self, first: int = 5, children: int = 2) -> None:
        self.first = first
        self.children = children
        self.x: dict[UUID, float] = {}
        self.events: list[str] = []

    def initial_operations(
        self, searcher_state: searcher.SearcherState
    ) -> list[searcher.Operation]:
        made = (self.make(float(x)) for x in range(self.first))
        return [operation for trial in made for operation in trial]

    def make(self, x: float) -> list[searcher.Operation]:
        request_id = uuid4()
        self.x[request_id] = x
        return [searcher.Create(request_id, {"x": x}), searcher.ValidateAfter(request_id, 2)]

    def on_trial_created(
        self, searcher_state: searcher.SearcherState, request_id: UUID
    ) -> list[searcher.Operation]:
        assert request_id in self.x, "a trial that this state never made"
        return []

    def on_validation_completed(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        metric: float,
        train_length: int,
    ) -> list[searcher.Operation]:
        assert metric == self.x[request_id] / train_length
        self.events.append(f"{self.x[request_id]} at {train_length}")
        if train_length == 2 and metric < 1.5:
            return [searcher.ValidateAfter(request_id, length) for length in (4, 6)]
        if train_length == 4:
            return []
        return [searcher.Close(request_id)]

    def on_trial_closed(
        self, searcher_state: searcher.SearcherState, request_id: UUID
    ) -> list[searcher.Operation]:
        if self.progress(searcher_state) == 1:
            return [searcher.Shutdown()]
        x = self.x[request_id] + 100
        return self.make(x) if x < 100 * (1 + self.children) else []

    def on_trial_exited_early(
        self,
        searcher_state: searcher.SearcherState,
        request_id: UUID,
        exited_reason: searcher.ExitedReason,
    ) -> list[searcher.Operation]:
        return []

    def progress(self, searcher_state: searcher.SearcherState) -> float:
        return len(searcher_state.trials_closed) / (self.first * (1 + self.children))


def expected_lengths(first: int = 5, children: int = 2) -> dict[float, list[int]]:
    """Return the lengths of all trials of `Generations`: x / 2 < 1.5 holds only for 0, 1 and 2."""
    everyone = (x + 100 * child for x in range(first) for child in range(1 + children))
    return {float(x): [2, 4, 6] if x < 3 else [2] for x in everyone}
