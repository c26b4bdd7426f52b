"""An agent in virtual time that calls the API like the real agent, with scripted trials. See
docs/agent-protocol.md.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from detcloud.agent.allocation.trial_reports import ReportLine
from detcloud.agent.sync.schedule import DEFER_SECONDS

SLOTS_NAMED = "cuda"
LOG_LINE = "epoch 3, batch 1200: loss 0.2381, accuracy 0.918, 412 examples a second\n"
BATCHES_PER_VALIDATION = 100
# Milliseconds from the start directive: the container runs, the environment is reported, the code
# begins.
RUNNING_MS, ENVIRONMENT_MS, FIRST_MS = 5_000, 8_000, 10_000
# Milliseconds from a validation to the start and the end of the checkpoint.
INTENT_MS, CHECKPOINT_MS = 500, 6_000
EXIT_MS = 1_000
PACKAGES = [f"package-{n}==1.0.{n}" for n in range(60)]


class Api(Protocol):
    """The API for requests."""

    now_ms: int

    def request(
        self, method: str, path: str, token: str | None = None, content: object = None
    ) -> Any:
        """Send a request and return the answer."""


@dataclass(frozen=True)
class TrialScript:
    """A trial's script.

    `validations`: number of validations, each with a checkpoint. `validation_ms`: period of
    validations. `talk_ms`: period of training metrics and log lines, 0 for none.
    """

    validations: int = 10
    validation_ms: int = 360_000
    talk_ms: int = 10_000

    @property
    def length(self) -> int:
        """Batches of the whole script."""
        return self.validations * BATCHES_PER_VALIDATION


@dataclass
class _ScriptedLine:
    """A line that is written at `at_ms`. `line`: the form that the agent parses."""

    at_ms: int
    writer: str
    line: ReportLine


@dataclass
class _Run:
    """An allocation with its written and future lines."""

    allocation: str
    said: list[_ScriptedLine] = field(default_factory=list)
    logged_ms: list[int] = field(default_factory=list)
    acked: Mapping[str, int] = field(default_factory=dict)
    log_acked: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    ended: bool = False

    def say(self, at_ms: int, writer: str, kind: str, **fields: Any) -> None:
        """Schedule a line of a writer at `at_ms`."""
        line = {"kind": kind, "time_ms": at_ms, **fields}
        offset = self.offsets.get(writer, 0) + len(json.dumps(line)) + 1
        self.offsets[writer] = offset
        self.said.append(_ScriptedLine(at_ms, writer, ReportLine(offset, b"", line)))

    def unsent(self, now_ms: int) -> list[_ScriptedLine]:
        """Return the written lines without an acknowledgement."""
        return [
            line
            for line in self.said
            if line.at_ms <= now_ms and line.line.offset > self.acked.get(line.writer, 0)
        ]

    def log(self, now_ms: int) -> str:
        """The log's text that is not acknowledged."""
        written = sum(at_ms <= now_ms for at_ms in self.logged_ms)
        return (LOG_LINE * written)[self.log_acked :]


class TalkingAgent:
    """The agent of an instance. `due_ms`: the time of the next call."""

    def __init__(self, api: Api, name: str, pool: str, slots: int, course: TrialScript) -> None:
        self.due_ms = api.now_ms
        self.runs: dict[str, _Run] = {}
        self._api = api
        self._name, self._pool, self._slots = name, pool, slots
        self._course = course
        self._session: Mapping[str, Any] = {}
        self._seen = 0
        self._calls = 0
        self._patient_ms = self._pause_ms = 0

    def call_once(self) -> None:
        """Enrol or sync, and set the time of the next call."""
        if not self._session:
            self._enrol()
            return
        answer = self._sync()
        now_ms = self._api.now_ms
        self._seen = answer["revision"]
        for entry in answer["desired"]:
            self._apply(entry)
        for name, run in self.runs.items():
            run.acked = answer["acked"].get(name, {})
            run.log_acked = answer["logs_acked"].get(name, 0)
        self._patient_ms = int(answer.get("patient_ms", DEFER_SECONDS * 1000))
        self._pause_ms = answer["next_sync_ms"]
        self.due_ms = now_ms + self._pause_ms
        for at_ms, is_urgent in self._event_times():
            wait_ms = 0 if is_urgent else self._patient_ms
            self.due_ms = min(self.due_ms, max(at_ms + wait_ms, now_ms))

    def _can_wait(self) -> bool:
        """Return whether all unsent lines may wait for the call after the next."""
        now_ms = self._api.now_ms
        written = [event_time for event_time in self._event_times() if event_time[0] <= now_ms]
        if not written or any(is_urgent for _, is_urgent in written):
            return False
        oldest_ms = min(at_ms for at_ms, _ in written)
        return self._pause_ms > 0 and oldest_ms + self._patient_ms - now_ms >= self._pause_ms

    def _event_times(self) -> Iterator[tuple[int, bool]]:
        """Yield the times of unsent and future lines, with their urgency."""
        for run in self.runs.values():
            for said in run.said:
                if said.line.offset > run.acked.get(said.writer, 0):
                    yield said.at_ms, said.writer == "agent" or said.line.is_urgent
            sent = run.log_acked // len(LOG_LINE)
            yield from ((at_ms, False) for at_ms in run.logged_ms[sent:])

    def _enrol(self) -> None:
        """Join like an instance of AWS: prove the identity, then enrol."""
        token = f"dct_{hashlib.sha256(self._name.encode()).hexdigest()}"
        proof = {
            "resource_pool": self._pool,
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
            "authorization": self._name,
            "date": "20260101T000000Z",
            "security_token": "session",
        }
        self._api.request("PUT", f"/api/v1/instances/{self._name}/identity", None, proof)
        slots = [
            {"id": n, "type": SLOTS_NAMED, "uuid": f"GPU-{self._name}-{n}", "name": "GPU"}
            for n in range(self._slots)
        ]
        asked = {"name": self._name, "resource_pool": self._pool, "slots": slots, "version": "1"}
        self._session = self._api.request("POST", "/api/v1/agents", token, asked)

    def _sync(self) -> Any:
        now_ms = self._api.now_ms
        self._calls += 1
        runs = {} if self._can_wait() else self.runs
        reports = [
            {
                "allocation": name,
                "writer": said.writer,
                "offset": said.line.offset,
                "line": said.line.fields,
            }
            for name, run in runs.items()
            for said in run.unsent(now_ms)
        ]
        logs = [
            {"allocation": name, "offset": run.log_acked, "text": text, "marks": [[0, now_ms]]}
            for name, run in runs.items()
            if (text := run.log(now_ms))
        ]
        body = {
            "epoch": self._session["epoch"],
            "call": self._calls,
            "seen": self._seen,
            "wait_ms": 0,
            "known": sorted(self.runs),
            "more": False,
            "reports": reports,
            "logs": logs,
        }
        path = f"/api/v1/agents/{self._name}/sync"
        return self._api.request("POST", path, self._session["token"], body)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        name = entry["allocation"]
        run = self.runs.get(name)
        if entry["state"] == "forget":
            self.runs.pop(name, None)
        elif entry["state"] == "run" and run is None:
            self.runs[name] = self._begin_run(name, entry)
        elif entry["state"] == "run" and run is not None:
            self._apply_directives(run, entry["directives"])

    def _apply_directives(self, run: _Run, directives: Mapping[str, Any]) -> None:
        """End a trial that has reached the length if no further length follows."""
        now_ms = self._api.now_ms
        if directives["closed"] and now_ms >= run.said[-1].at_ms and not run.ended:
            run.ended = True
            at_ms = now_ms + EXIT_MS
            run.say(at_ms, "0", "exit", reason="completed", directive_revision=1)
            run.say(at_ms, "agent", "exited", code=0, reason="completed", directive_revision=1)

    def _begin_run(self, name: str, entry: Mapping[str, Any]) -> _Run:
        """Return a new run with all lines until the length is reached."""
        token = self._session["token"]
        path = entry["code"]["path"]
        self._api.request("GET", path, token)
        run, course, began_ms = _Run(name), self._course, self._api.now_ms
        for state, at_ms in (("PULLING", 0), ("STARTING", 500), ("RUNNING", RUNNING_MS)):
            run.say(began_ms + at_ms, "agent", "container", state=state)
        about = {"python": "3.13", "torch": "2.7", "packages": PACKAGES, "hostname": self._name}
        run.say(began_ms + ENVIRONMENT_MS, "0", "environment", **about)
        acts: list[tuple[int, Callable[[int], None]]] = []
        first_ms = began_ms + FIRST_MS
        end_ms = first_ms + course.validations * course.validation_ms
        for n in range(course.validations):
            at_ms = first_ms + (n + 1) * course.validation_ms
            acts.append((at_ms, partial(_validate, run, n + 1)))
        if course.talk_ms:
            for at_ms in range(first_ms + course.talk_ms, end_ms, course.talk_ms):
                acts.append((at_ms, partial(_talk, run, first_ms)))
        for at_ms, act in sorted(acts, key=lambda item: item[0]):
            act(at_ms)
        done = {"length": course.length, "metric": 0.1}
        run.say(end_ms + CHECKPOINT_MS, "0", "completed", **done)
        return run


def _talk(run: _Run, first_ms: int, at_ms: int) -> None:
    run.logged_ms.append(at_ms)
    metrics = {"loss": 0.2381, "accuracy": 0.918}
    steps = 1 + (at_ms - first_ms) // 1000
    run.say(at_ms, "0", "metrics", group="training", steps_completed=steps, metrics=metrics)


def _validate(run: _Run, number: int, at_ms: int) -> None:
    """Write a validation that is the best so far, with a kept checkpoint."""
    steps = number * BATCHES_PER_VALIDATION
    trial_id, _, epoch = run.allocation.partition(".")
    uuid = str(UUID(int=int(trial_id) * 1_000_000 + number))
    place = {"uuid": uuid, "steps_completed": steps, "path": f"1/{trial_id}/{epoch}/{uuid}"}
    metrics = {"loss": 1.0 / number, "accuracy": 0.9}
    run.say(at_ms, "0", "metrics", group="validation", steps_completed=steps, metrics=metrics)
    run.say(at_ms + INTENT_MS, "0", "checkpoint_intent", **place)
    stored = {"manifest_sha256": "a" * 64, "size_bytes": 90_000_000, "files": 4, "metadata": {}}
    run.say(at_ms + CHECKPOINT_MS, "0", "checkpoint", **place, **stored)
