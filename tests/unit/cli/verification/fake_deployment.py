"""A fake deployed cluster under a virtual clock, with the parts that a self-test uses.

A second after the submission an instance launches, then its agent enrols, and then the trial runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from detcloud.cli.verification.plan import PlannedPool
from detcloud.cli.verification.runs import read_before
from detcloud.cli.verification.steps import Session
from detcloud.client import Client
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import ApiError

POOL = "gpus"
PLANNED = PlannedPool(POOL, "g5.xlarge", "a", "spot", 1, 0.4)
# Seconds from the submission.
LAUNCH, ENROLMENT, START, END = 1, 3, 4, 6


@dataclass
class FakeExperiment:
    """An experiment with one trial."""

    deployment: FakeDeployment
    id: int
    machine: str
    created_ms: int
    state: str = "ACTIVE"
    message: str = ""
    is_deleted: bool = False
    is_archived: bool = False

    @property
    def seconds(self) -> float:
        return self.deployment.now - self.created_ms / 1000

    @property
    def has_ended(self) -> bool:
        return self.state != "ACTIVE"

    @property
    def ended_ms(self) -> int | None:
        return self.created_ms + END * 1000 if self.has_ended else None

    def refresh(self) -> None:
        if self.is_deleted:
            raise ApiError(404, "not_found", "it was deleted")
        if self.seconds >= END and self.state == "ACTIVE" and self.deployment.boots:
            self.state = self.deployment.end_state

    def history(self) -> Iterator[dict[str, Any]]:
        texts = {
            ENROLMENT: f"allocation 1.1 has slots 0 of agent {self.machine}",
            START: "allocation 1.1 is RUNNING",
        }
        for seconds, text in texts.items():
            if self.deployment.boots and self.seconds >= seconds:
                yield {"time_ms": self.created_ms + seconds * 1000, "text": text}

    def trials(self) -> list[Any]:
        metadata = {"gpu_check": self.deployment.results}
        data = {"metadata": metadata, "message": "exit code 1"}
        lines = [{"text": "it is broken"}]
        return [SimpleNamespace(data=data, refresh=lambda: None, log_lines=lambda: lines)]

    def kill(self) -> None:
        self.state = "CANCELED"

    def archive(self) -> None:
        self.is_archived = True

    def delete(self) -> None:
        self.is_deleted = True


@dataclass
class FakeAgent:
    """The agent of an instance."""

    id: str
    enrolled_ms: int
    state: str = "ALIVE"
    enabled: bool = True
    slots: list[Any] = field(default_factory=list)

    def disable(self, *, drain: bool) -> None:
        assert drain
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True


@dataclass
class FakeDeployment:
    """A deployed cluster with one pool, and the calls of its cloud."""

    now: float = 1_000.0
    boots: bool = True
    """Whether launched instances boot."""
    end_state: str = "COMPLETED"
    results: dict[str, Any] = field(default_factory=lambda: {"compute": ["ok", 0.1, ""]})
    running: int = 0
    """The number of running trials of other users."""
    submitted: list[FakeExperiment] = field(default_factory=list)
    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents_by_id: dict[str, FakeAgent] = field(default_factory=dict)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    alarms: list[dict[str, str]] = field(default_factory=list)
    """The results of the check of the alarms."""
    ends: bool = True
    """Whether the cloud ends instances."""
    refused: str = ""
    """The part of the cloud's calls that is refused."""

    def session(self) -> Session:
        session = Session(
            cast(Client, self),
            self,
            "aws",
            Path(),
            lambda line: None,
            sleep=self.sleep,
            seconds=lambda: self.now,
        )
        session.before[POOL] = read_before(self.resource_pool(POOL).data)
        return session

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for experiment in self.submitted:
            name = experiment.machine
            if experiment.seconds >= LAUNCH and name not in self.instances:
                launched_ms = experiment.created_ms + LAUNCH * 1000
                self.instances[name] = self.row(name, launched_ms)
            if self.boots and experiment.seconds >= ENROLMENT and name not in self.agents_by_id:
                enrolled_ms = experiment.created_ms + ENROLMENT * 1000
                self.agents_by_id[name] = FakeAgent(name, enrolled_ms)

    @staticmethod
    def row(name: str, launched_ms: int) -> dict[str, Any]:
        return {
            "id": name,
            "zone": "a",
            "instance_type": "g5.xlarge",
            "market": "spot",
            "launched_ms": launched_ms,
        }

    def create_experiment(self, *_: object, **__: object) -> FakeExperiment:
        number = len(self.submitted) + 1
        made = FakeExperiment(self, number, f"i-{number}", int(self.now * 1000))
        self.submitted.append(made)
        return made

    def experiments(self, label: str) -> list[FakeExperiment]:
        assert label.startswith("deploy-verify-")
        return self.submitted

    def resource_pool(self, name: str) -> Any:
        boots = [
            {
                "id": row["id"],
                "reason": "no disk",
                "ended_ms": row["launched_ms"] + 1000,
                "boot_log": "line 1\nline 2",
            }
            for row in self.instances.values()
            if not self.boots and self.now >= row["launched_ms"] / 1000 + 1
        ]
        fleet = {"trouble": "", "waits": "", "offerings": [], "failed_boots": boots}
        rows = list(self.instances.values())
        pool = {"instance_list": rows, "fleet": fleet, "running": self.running, "queued": 0}
        return SimpleNamespace(data=pool)

    def agents(self) -> list[FakeAgent]:
        return list(self.agents_by_id.values())

    def call(
        self,
        part: str,
        instances: Iterable[str] = (),
        role: str = "",
        providers: Iterable[str] = (),
    ) -> dict[str, Any]:
        self.calls.append((part, list(instances)))
        if part == self.refused:
            raise DetcloudError("AccessDenied")
        if part == "end" and self.ends:
            for pair in self.calls[-1][1]:
                del self.instances[pair.partition("/")[2]]
        listed = [{"id": name, "removal": f"end {name}"} for name in self.instances]
        return {"instances": listed, "alarms": self.alarms}
