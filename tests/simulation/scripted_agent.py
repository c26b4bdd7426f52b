"""An agent without processes, which runs desired allocations by a script, through the real sync
call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from control_plane.actors.step import CommandRefused
from control_plane.agents.reports import Report
from control_plane.agents.service import SyncResponse
from control_plane.agents.sync_acceptance import SyncRequest

Line = dict[str, Any]
Script = Callable[["Run"], list[Line]]
"""What an allocation reports next, given what it knows; an `exited` line ends it."""


class Calls(Protocol):
    """The two calls that an agent makes."""

    def enrol(
        self, agent: str, pool: str, slots: tuple[tuple[int, str, str, str], ...], version: str
    ) -> int: ...

    def sync(self, agent: str, request: SyncRequest) -> SyncResponse: ...


@dataclass
class Run:
    """One allocation on the agent."""

    allocation: str
    spec: Mapping[str, Any]
    directives: Mapping[str, Any]
    killed: bool = False
    lines: list[tuple[str, int, Line]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    has_ended: bool = False
    rounds: int = 0

    def report(self, line: Line) -> None:
        """Appends a line to the stream its kind belongs to."""
        rank = str(self.spec.get("rank", 0))
        writer = "agent" if line["kind"] in ("container", "exited") else rank
        self.offsets[writer] = self.offsets.get(writer, 0) + 10
        self.lines.append((writer, self.offsets[writer], line))
        self.has_ended = self.has_ended or line["kind"] == "exited"


def train_at_once(run: Run) -> list[Line]:
    """Trains to the length it is given in one go, validates, and ends or idles."""
    length = run.directives["length"]
    if run.killed:
        return [{"kind": "exited", "reason": "killed"}]
    if run.directives["preempt"]:
        return [*checkpoint(run, 1), {"kind": "exited", "reason": "preempted"}]
    lines: list[Line] = [{"kind": "container", "state": "RUNNING"}]
    lines += [
        {
            "kind": "metrics",
            "group": "validation",
            "steps_completed": length,
            "metrics": {run.spec["metric"]: metric_of(run)},
        },
        {"kind": "completed", "length": length, "metric": metric_of(run)},
        {"kind": "exited", "reason": "completed" if run.directives["closed"] else "idle"},
    ]
    return lines


def checkpoint(run: Run, steps: int) -> list[Line]:
    """Return the report of a complete checkpoint at `steps` batches."""
    trial_id, epoch = run.allocation.split(".")
    uuid = f"{int(trial_id):08x}-{int(epoch):04x}-4000-8000-{steps:012x}"
    path = f"{run.spec['experiment_id']}/{trial_id}/{epoch}/{uuid}"
    line = {"uuid": uuid, "steps_completed": steps, "path": path, "size_bytes": 8, "files": 1}
    return [{"kind": "checkpoint", **line, "manifest_sha256": "0" * 64, "metadata": {}}]


def metric_of(run: Run) -> float:
    """Return a metric that depends on the trial's hyperparameters alone."""
    return round(sum(v for v in run.spec["hparams"].values() if isinstance(v, float)), 6)


class ScriptedAgent:
    """An agent with `slots` slots; each `sync` reports what the scripts say and applies what is
    desired. `service` may be replaced by another host of the same cluster.
    """

    def __init__(self, service: Calls, name: str, pool: str, slots: int, script: Script) -> None:
        self.service = service
        self.name = name
        self._pool = pool
        self._slots = tuple((n, "cpu", f"{name}-{n}", "cpu") for n in range(slots))
        self.script = script
        self.epoch = 0
        self.runs: dict[str, Run] = {}
        self.started: list[str] = []
        self._acked: Mapping[str, Mapping[str, int]] = {}
        self._calls = 0

    def next_call(self) -> int:
        """Return the number of the call that is made now."""
        self._calls += 1
        return self._calls

    def enrol(self) -> None:
        """Begin a session."""
        self.epoch = self.service.enrol(self.name, self._pool, self._slots, "1")

    def sync(self) -> SyncResponse:
        """Make one call, with all reports that are not acknowledged."""
        reports = tuple(
            Report(*_parse_allocation(run.allocation), writer, offset, line)
            for run in self.runs.values()
            for writer, offset, line in run.lines
            if offset > self._acked.get(run.allocation, {}).get(writer, 0)
        )
        request = SyncRequest(self.epoch, tuple(self.runs), reports, call=self.next_call())
        answer = self.service.sync(self.name, request)
        self._acked = answer.acked
        for entry in answer.desired:
            self._apply(entry)
        return answer

    def work(self) -> int:
        """Run one step of the script of every running allocation; returns how many were run."""
        count = 0
        for run in self.runs.values():
            if not run.has_ended:
                count += 1
                for line in self.script(run):
                    run.report(line)
                run.rounds += 1
        return count

    def _apply(self, entry: Mapping[str, Any]) -> None:
        name = entry["allocation"]
        match entry["state"]:
            case "run" if "spec" in entry:
                self.runs[name] = Run(name, entry["spec"], entry["directives"])
                self.started.append(name)
            case "run":
                self.runs[name].directives = entry["directives"]
            case "kill" if name in self.runs:
                self.runs[name].killed = True
            case "kill":
                # What is not there is answered all the same.
                self.runs[name] = Run(name, {}, {}, killed=True)
                self.runs[name].report({"kind": "exited", "reason": "killed"})
            case "forget":
                self.runs.pop(name, None)


def settle(agents: list[ScriptedAgent], *, rounds_max: int = 10_000) -> None:
    """Sync and work until nothing runs and nothing changes."""
    for _ in range(rounds_max):
        revisions = []
        for agent in agents:
            try:
                revisions.append(agent.sync().revision)
            except CommandRefused:
                agent.enrol()
                revisions.append(-1)
        if sum(agent.work() for agent in agents) == 0 and all(not a.runs for a in agents):
            return
    raise AssertionError("the agents never came to rest")


def _parse_allocation(allocation: str) -> tuple[int, int]:
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
