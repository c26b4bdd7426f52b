"""The agent's session with a cluster that refuses lines, is unreachable or was restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import LoginIssuer
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import Session
from detcloud.agent.trial_grants import TrialGrants
from detcloud.shared.http import ApiError, Transport, Unreachable

CALLS_MAX = 500


class HastySchedule(SyncSchedule):
    """Schedule that never sleeps. A pause calls `on_pause`."""

    def __init__(self, on_pause: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.on_pause = on_pause

    def wait_until_due(self, seconds: float) -> None:
        pass

    def pause(self, seconds: float) -> None:
        self.on_pause()


class Cluster:
    """Cluster that fails some calls.

    A call with a step of `bad` fails with `status`; calls with a number in `down` (from 1) raise
    Unreachable. The cluster ends the session after receiving all lines up to `last_offset`.
    """

    def __init__(self, schedule: SyncSchedule, last_offset: int) -> None:
        self.schedule = schedule
        self.last_offset = last_offset
        self.status = 500
        self.bad: frozenset[int] = frozenset()
        self.down = range(0)
        self.lines: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self.acked = 0
        self.enrolment: dict[str, Any] = {}

    def request(self, method: str, path: str, body: Any, **_: object) -> dict[str, Any]:
        if path.endswith("/agents"):
            answer = {"agent_id": "node", "epoch": 1, "lease_ms": 30_000, "token": "dct_x"}
            return {**answer, **self.enrolment}
        reports = json.loads(body)["reports"]
        self.counts.append(len(reports))
        assert len(self.counts) < CALLS_MAX
        if len(self.counts) in self.down:
            raise Unreachable("the server is away")
        if self.bad & {report["line"].get("step") for report in reports}:
            raise ApiError(self.status, "internal", "something broke here")
        for report in reports:
            if report["offset"] > self.acked:
                self.lines.append(report["line"])
                self.acked = report["offset"]
        if self.acked >= self.last_offset:
            self.schedule.stop()
        acked = {"4.1": {"0": self.acked}}
        return {"acked": acked, "logs_acked": {}, "revision": 1, "desired": [], "next_sync_ms": 0}

    def close(self) -> None:
        pass


def create_session(
    cluster: Cluster | _RestoredCluster,
    node: Node,
    schedule: SyncSchedule,
    log_line: Callable[[str], None] = lambda line: None,
) -> Session:
    identity = AgentIdentity("node", "default", [], "1", "", "127.0.0.1")
    return Session(
        "http://cluster",
        "dct_join",
        identity,
        node,
        schedule,
        log_line,
        open_transport=lambda url, token: cast(Transport, cluster),
    )


def run_session(directory: AllocationDirectory, tmp_path: Path, **fields: Any) -> Cluster:
    """Run the session of an agent that adopts an allocation with 600 reported checkpoints."""
    report = directory.out / "report-0.jsonl"
    report.write_text("".join(f'{{"kind":"checkpoint","step":{n}}}\n' for n in range(600)))
    schedule = HastySchedule()
    cluster = Cluster(schedule, report.stat().st_size)
    for name, value in fields.items():
        setattr(cluster, name, value)
    create_session(cluster, _adopting_node(tmp_path), schedule).run()
    return cluster


@pytest.mark.parametrize("status", [422, 500])
@pytest.mark.parametrize("bad", [frozenset[int](), frozenset({0}), frozenset({77, 599})])
def test_refused_lines_are_abandoned_and_noted_in_the_log(
    directory: AllocationDirectory,
    tmp_path: Path,
    bad: frozenset[int],
    status: int,
) -> None:
    cluster = run_session(directory, tmp_path, bad=bad, status=status)
    steps = [line.get("step") for line in cluster.lines]
    assert steps == [None if n in bad else n for n in range(600)]
    assert directory.log.read_text().count("the cluster refused a line") == len(bad)


def test_lines_are_delivered_once_after_an_outage(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    cluster = run_session(directory, tmp_path, down=range(2, 60))
    assert [line["step"] for line in cluster.lines] == list(range(600))
    assert directory.log.read_text() == ""


def test_runs_of_a_former_incarnation_are_dropped_before_the_first_sync(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    (directory.out / "report-0.jsonl").write_text('{"kind":"checkpoint"}\n')
    node = _adopting_node(tmp_path)
    node.join("first")
    cluster = _RestoredCluster()
    # The agent's main thread polls during a pause.
    schedule = HastySchedule(on_pause=lambda: _poll(node))
    cluster.on_sync = schedule.stop
    lines: list[str] = []
    create_session(cluster, node, schedule, lines.append).run()
    assert cluster.known == [[]]
    assert node.allocation_ids() == []
    assert not directory.path.exists()
    assert "restored from an older copy" in lines[0]
    assert _adopting_node(tmp_path).belongs_to("second")


def test_a_running_trial_of_a_former_incarnation_prevents_joining(
    directory: AllocationDirectory, tmp_path: Path
) -> None:
    node = _adopting_node(tmp_path)
    node.join("first")
    # The process of the trial still runs.
    [allocation] = node.allocations()
    assert allocation.is_active
    with pytest.raises(OSError, match=r"4\.1 from before the restore are still running"):
        node.join("second")
    assert not node.belongs_to("second")


@pytest.mark.parametrize("noted", [None, "[]", "not json", "{}"])
def test_an_agent_without_a_stored_incarnation_keeps_runs(
    directory: AllocationDirectory, tmp_path: Path, noted: str | None
) -> None:
    if noted is not None:
        (tmp_path / "cluster.json").write_text(noted)
    node = _adopting_node(tmp_path)
    node.join("first")
    assert node.allocation_ids() == ["4.1"]
    assert node.belongs_to("first")
    assert not node.belongs_to("second")


def _poll(node: Node) -> None:
    for allocation in node.allocations():
        allocation.poll()


def _adopting_node(work: Path) -> Node:
    node = Node(work, [], ProcessRuntime(), cast(CodeCache, None), lambda line: None)
    node.adopt()
    return node


class _RestoredCluster:
    """Cluster of the incarnation `second`, without any assignment for the agent."""

    def __init__(self) -> None:
        self.known: list[list[str]] = []
        self.on_sync: Callable[[], None] = lambda: None

    def request(self, method: str, path: str, body: Any, **_: object) -> dict[str, Any]:
        if path.endswith("/agents"):
            fields = {"agent_id": "node", "epoch": 1, "lease_ms": 30_000, "token": "dct_x"}
            return {**fields, "incarnation": "second"}
        call = json.loads(body)
        assert call["incarnation"] == "second"
        self.known.append(call["known"])
        self.on_sync()
        return {"acked": {}, "logs_acked": {}, "revision": 1, "desired": [], "next_sync_ms": 0}

    def close(self) -> None:
        pass


class ExpectingRuntime(ProcessRuntime):
    """A runtime that records the images that the cluster names at the enrolment."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[str] = []
        self.logins: list[bool] = []

    def expect_image(self, image: str, issue_login: LoginIssuer | None = None) -> None:
        self.images.append(image)
        self.logins.append(issue_login is not None)


@pytest.mark.parametrize(
    ("enrolment", "images"), [({"image": "org/x:1"}, ["org/x:1"]), ({"image": ""}, []), ({}, [])]
)
def test_new_machine_expects_the_image_of_the_enrolment(
    tmp_path: Path, enrolment: dict[str, Any], images: list[str]
) -> None:
    schedule, runtime = HastySchedule(), ExpectingRuntime()
    cluster = Cluster(schedule, 0)
    cluster.enrolment = enrolment
    code = CodeCache(tmp_path / "code", lambda path, file: 0)
    node = Node(tmp_path / "work", [], runtime, code, lambda line: None)
    node.adopt()
    create_session(cluster, node, schedule).run()
    assert runtime.images == images


@pytest.mark.parametrize("needs_login", [True, False])
def test_pull_has_a_login_only_if_the_image_needs_one(tmp_path: Path, needs_login: bool) -> None:
    schedule, runtime = HastySchedule(), ExpectingRuntime()
    cluster = Cluster(schedule, 0)
    cluster.enrolment = {"image": "org/x:1", "image_needs_login": needs_login}
    code = CodeCache(tmp_path / "code", lambda path, file: 0)
    grants = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print)
    node = Node(tmp_path / "work", [], runtime, code, lambda line: None, grants=grants)
    node.adopt()
    create_session(cluster, node, schedule).run()
    assert (runtime.images, runtime.logins) == (["org/x:1"], [needs_login])


def test_machine_with_trials_expects_no_image(
    directory: AllocationDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[str] = []
    monkeypatch.setattr(
        ProcessRuntime, "expect_image", lambda _, image, _login=None: images.append(image)
    )
    run_session(directory, tmp_path, enrolment={"image": "org/x:1"})
    assert images == []
