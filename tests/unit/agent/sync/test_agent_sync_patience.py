"""News that is not urgent waits for a later call that renews the lease anyway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.shared.http import Transport


class Clock:
    """Clock in seconds; only tests change `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_news_is_deferred_if_the_next_call_is_in_time() -> None:
    clock = Clock()
    schedule = SyncSchedule(clock.monotonic)
    assert not schedule.can_defer(15)
    schedule.defer_seconds = 36
    schedule.request_sync(urgent=False)
    # The news is due after 36 s. The next call comes 15 s later: in time at 0, 20 and 21 s.
    deferrable = []
    for seconds in (0, 20, 21, 22, 36):
        clock.now = 1000.0 + seconds
        deferrable.append(schedule.can_defer(15))
    assert deferrable == [True, True, True, False, False]


def test_urgent_news_ends_the_deferral() -> None:
    schedule = SyncSchedule(Clock().monotonic)
    schedule.defer_seconds = 36
    schedule.request_sync(urgent=False)
    schedule.request_sync(urgent=True)
    assert not schedule.can_defer(15)


class PatientSchedule(SyncSchedule):
    """Schedule without sleeps; `defers` has the answers of `can_defer`, `delays` its arguments."""

    def __init__(self, *defers: bool) -> None:
        super().__init__()
        self.defers = list(defers)
        self.delays: list[float] = []

    def can_defer(self, seconds: float) -> bool:
        self.delays.append(seconds)
        return self.defers.pop(0)

    def wait_until_due(self, seconds: float) -> None:
        pass


class Cluster:
    """Cluster that asks for a call every `pause_ms`; the first lines or call 6 end the session."""

    def __init__(self, schedule: SyncSchedule, pause_ms: int) -> None:
        self.schedule = schedule
        self.pause_ms = pause_ms
        self.counts: list[int] = []

    def request(self, method: str, path: str, body: Any, **_: object) -> dict[str, Any]:
        if path.endswith("/agents"):
            return {"agent_id": "node", "epoch": 1, "lease_ms": 30_000, "token": "dct_x"}
        reports = json.loads(body)["reports"]
        self.counts.append(len(reports))
        if reports or len(self.counts) > 5:
            self.schedule.stop()
        acked = {"4.1": {"0": max((report["offset"] for report in reports), default=0)}}
        answer = {"acked": acked, "logs_acked": {}, "revision": 1, "desired": []}
        return {**answer, "next_sync_ms": self.pause_ms, "patient_ms": 36_000}

    def close(self) -> None:
        pass


def line_counts(
    directory: AllocationDirectory, folder: Path, schedule: PatientSchedule, pause_ms: int
) -> list[int]:
    """Run the session of an agent with three metrics lines; return the number of lines per call."""
    text = '{"kind":"metrics","group":"training"}\n'
    (directory.out / "report-0.jsonl").write_text(text * 3)
    cluster = Cluster(schedule, pause_ms)
    node = Node(folder, [], ProcessRuntime(), cast(CodeCache, None), lambda line: None)
    node.adopt()
    identity = AgentIdentity("node", "default", [], "1", "", "127.0.0.1")
    Session(
        "http://cluster",
        "dct_join",
        identity,
        node,
        schedule,
        lambda line: None,
        open_transport=lambda url, token: cast(Transport, cluster),
    ).run()
    return cluster.counts


def test_a_lease_renewal_carries_no_deferred_lines(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    schedule = PatientSchedule(True, True, False)
    # The first call returns the offsets; two calls follow without lines, and the last has all
    # lines.
    assert line_counts(directory, tmp_path, schedule, 15_000) == [0, 0, 0, 3]
    assert schedule.delays == [15.0] * 3


def test_lines_are_not_deferred_without_a_pause(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    schedule = PatientSchedule(True)
    assert line_counts(directory, tmp_path, schedule, 0) == [0, 3]
    assert schedule.delays == []
