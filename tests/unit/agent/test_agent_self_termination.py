"""The end of an idle cloud machine whose cluster has a dead tick."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detcloud.agent.__main__ import _self_termination
from detcloud.agent.alive_file import AliveFile
from detcloud.agent.assignment.model_code import CodeCache
from detcloud.agent.node import Node
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.self_termination import SelfTermination
from detcloud.agent.sync.enrolment import AgentIdentity
from detcloud.agent.sync.schedule import SyncSchedule
from detcloud.agent.sync.session import REFUSING_SECONDS, Session
from detcloud.shared.dead_tick import CONFIRM_SECONDS, DEAD_TICK, TICK_SECONDS_MAX
from detcloud.shared.http import Transport

DEAD_MS = (TICK_SECONDS_MAX + 1) * 1000
SILENT_MINUTES = 30
# Without a spec, the trial fails before a process starts.
RUN = {"allocation": "4.1", "state": "run", "slots": [], "directives": {"revision": 1}}


class Machine(SyncSchedule):
    """A cloud machine with an agent, and its cluster, which answers each sync.

    Each wait of the session runs the next step of the test, and the end of the steps stops the
    session.

    Attributes:
        age_ms: the age of the tick in the answers; None for a server that sends none.
        has_work: whether a trial runs.
        notices: the notices that the cluster received.
        pauses: the seconds that the session waited between two syncs.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.age_ms: int | None = DEAD_MS
        self.has_work = False
        self.desired: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self.pauses: list[float] = []
        self.now = 0.0
        self.alive_path = folder / "alive"
        code = cast(CodeCache, None)
        self.node = Node(folder, [], ProcessRuntime(), code, self.logged.append)
        self.node.adopt()
        alive = AliveFile(self.alive_path)
        self.session = Session(
            "http://cluster",
            "dct_join",
            AgentIdentity("node", "default", [], "1", "", "127.0.0.1"),
            self.node,
            self,
            self.logged.append,
            alive.record_answer,
            open_transport=lambda url, token: cast(Transport, self),
        )
        self.session.tick_watch._monotonic = lambda: self.now
        self.ending = SelfTermination(
            self.node, self.session, alive, self.logged.append, lambda: 1_700_000_000.0
        )
        self._syncs_left = 0

    def sync(self, count: int = 1, seconds: float = 0.0) -> None:
        """Make syncs with a check of the agent's loop after each answer, `seconds` apart."""
        self._syncs_left, self._stopped, self._seconds = count, False, seconds
        self.session.run()

    def wait_until_due(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += self._seconds
        self.ending.check(lambda: self.has_work)
        self._syncs_left -= 1
        if not self._syncs_left:
            self.stop()

    def kill_tick(self) -> None:
        """Sync until the agent has confirmed that the tick is dead, and check once more."""
        self.sync(2, CONFIRM_SECONDS)

    @property
    def is_switched_off(self) -> bool:
        """Whether the watchdog's test of the file switches the machine off."""
        words = ["find", str(self.alive_path), "-mmin", f"-{SILENT_MINUTES}"]
        return not subprocess.run(words, capture_output=True, check=True).stdout

    def request(self, method: str, path: str, body: Any, **_: object) -> dict[str, Any]:
        if path.endswith("/agents"):
            return {"agent_id": "node", "epoch": 1, "lease_ms": 30_000, "token": "dct_x"}
        call = json.loads(body)
        self.notices += [call["notice"]] if "notice" in call else []
        answer = {"acked": {}, "logs_acked": {}, "revision": 1, "desired": self.desired}
        age = {} if self.age_ms is None else {"tick_age_ms": self.age_ms}
        return {**answer, **age, "next_sync_ms": 1_000}

    def close(self) -> None:
        pass


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_idle_machine_reports_its_end_and_is_switched_off(machine: Machine) -> None:
    machine.sync(2, CONFIRM_SECONDS - 1)
    assert not machine.node.refuses_new
    machine.sync(1, 1)
    machine.sync(1)
    # The second sync has the notice. The file expires after the answer.
    assert machine.node.refuses_new
    machine.sync(1)
    assert machine.notices == [{"deadline_ms": 1_700_000_000_000, "cause": DEAD_TICK}]
    assert machine.is_switched_off
    assert machine.logged[1:] == [
        "the cluster's tick has not run for 60 min: no new trial starts here, and the machine ends "
        "after its trials",
        "the machine will end: the cluster's tick is dead, and no trial runs",
    ]


def test_machine_ends_although_later_answers_touch_the_file(machine: Machine) -> None:
    machine.kill_tick()
    machine.sync(2)
    assert machine.is_switched_off
    # The decision was reported, so it stays.
    machine.age_ms = 0
    machine.sync(3)
    assert machine.is_switched_off
    assert len(machine.notices) == 1


def test_busy_machine_refuses_new_trials_until_the_tick_returns(machine: Machine) -> None:
    machine.has_work = True
    machine.kill_tick()
    machine.desired = [RUN]
    machine.sync(3)
    assert machine.node.allocation_ids() == []
    assert (machine.notices, machine.is_switched_off) == ([], False)
    # The server asks for a call each second, because it repeats the assignment.
    assert machine.pauses[-1] == REFUSING_SECONDS
    machine.age_ms = 1_000
    machine.sync(2)
    assert machine.node.allocation_ids() == ["4.1"]
    assert machine.logged[2] == "the cluster's tick runs again: new trials start here"
    assert not machine.is_switched_off


def test_busy_machine_ends_after_its_trials(machine: Machine) -> None:
    machine.has_work = True
    machine.kill_tick()
    machine.sync(2)
    assert not machine.is_switched_off
    machine.has_work = False
    machine.sync(2)
    assert machine.is_switched_off


def test_server_without_ages_ends_no_machine(machine: Machine) -> None:
    machine.age_ms = None
    machine.sync(5, CONFIRM_SECONDS)
    assert (machine.notices, machine.is_switched_off) == ([], False)


def test_unanswered_report_ends_no_machine(machine: Machine) -> None:
    machine.kill_tick()
    for _ in range(3):
        machine.ending.check(lambda: False)
    assert (machine.notices, machine.is_switched_off) == ([], False)


@pytest.mark.parametrize(
    ("identity", "has_file", "ends"),
    [("aws", True, True), ("gcp", True, True), (None, True, False), ("aws", False, False)],
)
def test_only_instances_of_the_provisioner_end_themselves(
    machine: Machine, identity: str | None, has_file: bool, ends: bool
) -> None:
    options = cast(Any, SimpleNamespace(identity=identity))
    alive = AliveFile(machine.alive_path) if has_file else None
    found = _self_termination(options, machine.node, machine.session, alive)
    assert (found is not None) is ends


def test_expired_file_stays_old(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    alive = AliveFile(path)
    alive.record_answer()
    alive.expire()
    alive.record_answer()
    alive.refresh()
    assert path.stat().st_mtime == 0
    # A call that was within `record_answer` at that time may touch the file.
    os.utime(path)
    alive.expire()
    assert path.stat().st_mtime == 0
