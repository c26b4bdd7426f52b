"""Trials that damage the trial directory: the agent still ends each trial and continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.processes.runtime import is_supervisor_gone
from tests.integration.trial_node import TrialNode, opened
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# Commands in the folder of the trial's code, next to in/, out/ and agent/.
ATTACKS = {
    "the inputs are gone": "rm -rf ../in",
    "the inputs are a file": "rm -rf ../in; touch ../in",
    "the agent's records are gone": "rm -rf ../agent",
    "pipes lie where the agent writes": (
        "cd ../agent; rm report-agent.jsonl trial.log;"
        " mkfifo report-agent.jsonl trial.log kill.json exit.json; cd ../code"
    ),
    "folders lie where records are written": "mkdir ../agent/exit.json ../agent/.exit.json.new",
    "a lock that nobody holds": "rm ../agent/lock; touch ../agent/lock",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TrialNode]:
    yield TrialNode(tmp_path / "node")
    for one in opened:
        one.node.close()
    opened.clear()


def begin(node: TrialNode, attack: str) -> tuple[Allocation, int]:
    """Start a trial that runs `attack` and ignores SIGTERM.

    Return the allocation and the process.
    """
    process, done = node.folder / "process", node.folder / "done"
    script = f"trap '' TERM\necho $$ > {process}\n{attack}\ntouch {done}\n"
    script += "while true; do sleep 0.1; done\n"
    allocation = node.begin("4.1", {"train.sh": script}, entrypoint="exec sh train.sh")
    # Removing the records ends a trial, perhaps before the attack is done.
    node.watch(allocation, lambda: done.exists() or not allocation.is_active)
    return allocation, int(process.read_text())


def is_running(process: int) -> bool:
    with suppress(OSError):
        os.kill(process, 0)
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_kill_ends_a_trial_after_any_damage_to_the_folder(node: TrialNode, attack: str) -> None:
    allocation, process = begin(node, attack)
    with suppress(OSError):
        allocation.apply_directives({"revision": 2, "length": 4, "closed": True})
    with suppress(OSError):
        allocation.kill(grace_ms=100)

    def look() -> bool:
        with suppress(OSError):
            allocation.poll()
        allocation.scan_output()
        return not allocation.is_active

    wait_until(look)
    wait_until(lambda: not is_running(process))
    last = json.loads(allocation.lines("agent", 0, 1 << 20)[-1].raw)
    assert last["kind"] == "exited"


def test_forged_exit_record_is_ignored(node: TrialNode) -> None:
    forged = json.dumps({"stage": "trial", "code": 0, "signal": None, "killed": False})
    allocation, process = begin(node, f"echo '{forged}' > ../agent/exit.json")
    for _ in range(5):
        allocation.poll()
    assert allocation.is_active
    assert is_running(process)
    allocation.kill(grace_ms=100)
    node.watch(allocation)
    last = json.loads(allocation.lines("agent", 0, 1 << 20)[-1].raw)
    assert (last["reason"], last["signal"]) == ("killed", 9)


EXITED = {"kind": "exited", "code": 0, "signal": None, "reason": "completed", "message": ""}


def test_next_agent_ignores_a_forged_exit_line(node: TrialNode) -> None:
    line = json.dumps({**EXITED, "time_ms": 1, "directive_revision": 1})
    allocation, process = begin(node, f"echo '{line}' >> ../agent/report-agent.jsonl")
    before = allocation.lines("agent", 0, 1 << 20)
    node.abandon()
    node = TrialNode(node.folder)
    (allocation,) = node.node.allocations()
    assert allocation.is_active
    assert is_running(process)
    assert [line.raw for line in allocation.lines("agent", 0, 1 << 20)] == [x.raw for x in before]
    allocation.kill(grace_ms=100)
    node.watch(allocation)
    ends = [x for x in allocation.lines("agent", 0, 1 << 20) if x.kind == "exited"]
    assert [end.fields["reason"] for end in ends] == ["killed"]


@pytest.mark.parametrize(
    "forged_report", [False, True], ids=["exit.json", "exit.json and the report"]
)
@pytest.mark.parametrize("leaves", ["", "setsid"], ids=["in its session", "in another session"])
@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
def test_child_of_a_trial_that_kills_the_supervisor_is_ended(
    node: TrialNode, *, leaves: str, restarts: bool, forged_report: bool
) -> None:
    """The slot gets another trial, so the child must end regardless of the records."""
    process = node.folder / "process"
    forged = json.dumps({"stage": "trial", "code": 0, "signal": None, "killed": False})
    line = json.dumps({**EXITED, "time_ms": 1, "directive_revision": 1})
    supervisor = '"$(sed s/.*supervisor..[^0-9]*// ../agent/process.json | sed s/[^0-9].*//)"'
    script = (
        f"{leaves} sh -c 'trap \"\" TERM; echo $$ > {process}; while true; do sleep 0.1; done' &\n"
        f"while [ ! -s {process} ]; do sleep 0.01; done\n"
        f"echo '{forged}' > ../agent/exit.json\n"
        + f"echo '{line}' >> ../agent/report-agent.jsonl\n"
        * forged_report
        + f"while [ ! -e {node.folder / 'go'} ]; do sleep 0.01; done\n"
        f"kill -9 {supervisor}\n"
    )
    allocation = node.begin("4.1", {"train.sh": script}, entrypoint="exec sh train.sh")
    node.watch(allocation, lambda: process.exists() and process.read_text().strip())
    if restarts:
        node.abandon()
    (node.folder / "go").touch()
    if restarts:
        wait_until(lambda: is_supervisor_gone(allocation.directory.agent))
        node = TrialNode(node.folder)
        (allocation,) = node.node.allocations()
    node.watch(allocation)
    wait_until(lambda: not is_running(int(process.read_text())))


def test_exit_is_sent_after_the_agents_report_was_truncated(
    node: TrialNode,
) -> None:
    """A power failure, or a trial, has cut the agent's report; the cluster has more lines."""
    allocation, _ = begin(node, "true")
    acked = allocation.lines("agent", 0, 1 << 20)[-1].offset
    allocation.acknowledge({"agent": acked}, 0)
    node.abandon()
    allocation.directory.report.write_bytes(b"")
    node = TrialNode(node.folder)
    (allocation,) = node.node.allocations()
    allocation.kill(grace_ms=100)
    node.watch(allocation)
    allocation.acknowledge({"agent": acked}, 0)
    assert not allocation.is_acknowledged()
    last = allocation.lines("agent", None, 1 << 20)[-1]
    assert last.kind == "exited"
    assert last.offset > acked
    allocation.acknowledge({"agent": last.offset}, 0)
    assert allocation.is_acknowledged()
