"""The agent's main loop while a write to its own disk fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from detcloud.agent import agent as agent_module
from detcloud.agent.agent import Agent
from detcloud.agent.alive_file import AliveFile
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import Phase, Status
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.shared.notices import FileNotices
from tests.unit.core.full_disk import files_of_at_most


class RecordingSchedule(SyncSchedule):
    """Schedule that records the urgency of each requested sync."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[bool] = []

    def request_sync(self, *, urgent: bool) -> None:
        self.requests.append(urgent)


class FakeTunnels:
    """The tunnels of an agent, which collect the warnings."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []

    def warn(self, allocation: str, text: str) -> None:
        self.warnings.append((allocation, text))

    def close(self) -> None:
        pass


class RunningRuntime(ProcessRuntime):
    """A runtime whose trials run."""

    def poll(self, directory: Path) -> Status:
        return Status(Phase.RUNNING)


class RefusedSession:
    """Session refused by the cluster: the agent polls once and ends."""

    refusal = "enough"
    announced_end = None
    tunnels: FakeTunnels | None = None

    def run(self) -> None:
        pass

    def cut_moved_call(self) -> None:
        pass


def test_reports_are_sent_while_the_disk_is_full(
    tmp_path: Path, directory: AllocationDirectory
) -> None:
    # The trial has no living supervisor, so the agent must record an end.
    (directory.agent / "launch.json").write_text("{}")
    (directory.out / "report-0.jsonl").write_text('{"kind": "exit", "reason": "completed"}\n')
    logged: list[str] = []
    no_code = cast(CodeCache, None)
    node = Node(tmp_path, [], ProcessRuntime(), no_code, logged.append)
    schedule, session = RecordingSchedule(), cast(Session, RefusedSession())
    notices = FileNotices(tmp_path / "none.json")
    alive = AliveFile(tmp_path / "alive")
    alive.record_answer()
    os.utime(tmp_path / "alive", (1, 1))
    agent = Agent(node, schedule, session, notices, 0.0, logged.append, alive)
    # The event ends the pause after the failed write.
    node.wake_event.set()
    with files_of_at_most(0):
        agent.run()
    assert schedule.requests == [True]
    # An unreported trial is work: the machine must not be shut down.
    assert (tmp_path / "alive").stat().st_mtime > 1
    assert logged == ["4.1 could not be monitored, trying again: [Errno 27] File too large"]


def test_warning_of_a_limit_is_shown_in_the_terminals(
    tmp_path: Path, directory: AllocationDirectory
) -> None:
    # The run should have ended in 1970, so the agent warns at once. The cluster ends the run.
    directory.write_spec({"run_limits": {"ends_ms": 1}})
    session = RefusedSession()
    session.tunnels = FakeTunnels()
    node = Node(tmp_path, [], RunningRuntime(), cast(CodeCache, None), lambda text: None)
    notices = FileNotices(tmp_path / "none.json")
    Agent(node, RecordingSchedule(), cast(Session, session), notices, 0.0, lambda text: None).run()
    text = "this run ends in 0 s, because it comes to its max_duration"
    assert session.tunnels.warnings == [(directory.allocation, text)]


class StoppableRuntime(ProcessRuntime):
    """A runtime whose trials run until the first kill. Records the grace of each kill."""

    def __init__(self) -> None:
        super().__init__()
        self.graces_ms: list[int] = []

    def poll(self, directory: Path) -> Status:
        if self.graces_ms:
            return Status(Phase.ENDED, signal=15, killed=True, stage="trial")
        return Status(Phase.RUNNING)

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        self.graces_ms.append(grace_ms)

    def remove(self, directory: Path) -> None:
        pass


class OpenSession:
    """Session without a refusal, which acknowledges nothing."""

    refusal = None
    announced_end = None
    tunnels = None

    def run(self) -> None:
        pass

    def cut_moved_call(self) -> None:
        pass


@pytest.mark.parametrize(("spec", "grace_ms"), [({"runs_once": True}, 200), ({}, 1000)])
def test_stopped_agent_waits_only_for_trials_that_save(
    tmp_path: Path,
    directory: AllocationDirectory,
    monkeypatch: pytest.MonkeyPatch,
    spec: dict[str, bool],
    grace_ms: int,
) -> None:
    monkeypatch.setattr(agent_module, "SHUTDOWN_SECONDS_MAX", 0.0)
    directory.write_spec(spec)
    runtime = StoppableRuntime()
    node = Node(tmp_path, [], runtime, cast(CodeCache, None), lambda text: None)
    session, notices = cast(Session, OpenSession()), FileNotices(tmp_path / "none.json")
    agent = Agent(node, RecordingSchedule(), session, notices, 0.2, lambda text: None)
    agent.stop_requests = 1
    agent.run()
    # A command is stopped at once, and has the time in which other trials save a checkpoint.
    assert runtime.graces_ms[0] == grace_ms
